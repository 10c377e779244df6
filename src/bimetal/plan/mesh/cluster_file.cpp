#include <fmt/format.h>
#include <toml++/toml.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <iterator>
#include <utility>
#include <vector>

#include "bimetal/base/error.h"
#include "bimetal/base/typed_text.h"
#include "bimetal/plan/mesh/cluster.h"

namespace bimetal::plan {
namespace {

constexpr std::int64_t kMostDevices = 65536;

/// One table of the file: its keys by name, each of which must be known.
class Section {
 public:
  Section(const std::string& origin, std::string name, const toml::table& table,
          std::vector<std::string_view> known)
      : origin_(origin), name_(std::move(name)), table_(table) {
    for (const auto& [key, value] : table) {
      if (std::ranges::find(known, key.str()) != known.end()) continue;
      refuse(value, fmt::format("unknown key '{}' in {}; did you mean '{}'?", key.str(), name_,
                                nearest_name(key.str(), known)));
    }
  }

  std::string text(std::string_view key, const std::string& otherwise) const {
    return table_[key].value_or(otherwise);
  }

  std::int64_t whole(std::string_view key, std::int64_t otherwise) const {
    const auto* const node = table_.get(key);
    if (!node) return otherwise;
    const auto value = node->value_exact<std::int64_t>();
    if (!value || *value < 1) refuse(*node, fmt::format("'{}' must be a whole number from 1", key));
    return *value;
  }

  double number(std::string_view key) const {
    const auto* const node = table_.get(key);
    const auto value = node ? node->value<double>() : std::nullopt;
    if (!value || !(*value > 0)) {
      refuse(node ? *node : static_cast<const toml::node&>(table_),
             fmt::format("{} needs '{}', a number above 0", name_, key));
    }
    return *value;
  }

  /// With a unit; `otherwise` below 0: it must be there.
  double amount(std::string_view key, std::optional<double> (*parse)(std::string_view),
                double otherwise, std::string_view example) const {
    const auto* const node = table_.get(key);
    if (!node && otherwise >= 0) return otherwise;
    const auto written = node ? node->value<std::string>() : std::nullopt;
    const auto value = written ? parse(*written) : std::nullopt;
    if (!value || !(*value > 0)) {
      refuse(node ? *node : static_cast<const toml::node&>(table_),
             fmt::format("{} needs '{}', such as \"{}\"", name_, key, example));
    }
    return *value;
  }

  const toml::array& tables(std::string_view key) const {
    const auto* const node = table_.get(key);
    if (!node || !node->is_array_of_tables()) {
      refuse(node ? *node : static_cast<const toml::node&>(table_),
             fmt::format("{} needs [[{}]]", name_, key));
    }
    return *node->as_array();
  }

  [[noreturn]] void refuse(const toml::node& node, const std::string& problem) const {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("{}:{}: {}", origin_, node.source().begin.line, problem));
  }

 private:
  const std::string& origin_;
  const std::string name_;
  const toml::table& table_;
};

void read_model(const std::string& origin, const toml::table& table, DescribedCluster& cluster) {
  const Section section(origin, "[model]", table,
                        {"layers", "width", "heads", "context", "vocabulary", "global_batch",
                         "precision", "optimizer"});
  TransformerSizes sizes;
  sizes.layers = section.whole("layers", sizes.layers);
  sizes.width = section.whole("width", sizes.width);
  sizes.heads = section.whole("heads", sizes.heads);
  sizes.context = section.whole("context", sizes.context);
  sizes.vocabulary = section.whole("vocabulary", sizes.vocabulary);
  const auto precision = section.text("precision", "float32");
  const bool wide = precision == "float32" || precision == "tf32";
  if (!wide && precision != "bfloat16" && precision != "float16") {
    section.refuse(*table.get("precision"), "'precision' is float32, tf32, bfloat16 or float16");
  }
  sizes.activation_bytes = wide ? 4 : 2;
  const auto optimizer = section.text("optimizer", "adamw");
  if (optimizer != "adamw" && optimizer != "adam" && optimizer != "sgd") {
    section.refuse(*table.get("optimizer"), "'optimizer' is adamw, adam or sgd");
  }
  sizes.state_bytes = optimizer == "sgd" ? 4 : 8;
  cluster.model = transformer_facts(sizes);
  cluster.global_batch = section.whole("global_batch", 64);
}

void read_devices(const std::string& origin, const Section& host, std::size_t index,
                  const std::string& host_name, DescribedCluster& cluster) {
  for (const auto& node : host.tables("device")) {
    const Section device(origin, "[[host.device]]", *node.as_table(),
                         {"name", "count", "teraflops", "memory"});
    const auto count = device.whole("count", 1);
    const auto name = device.text("name", "device");
    for (std::int64_t i = 0; i < count; ++i) {
      const auto number = count > 1 ? fmt::format(".{}", i) : "";
      cluster.devices.push_back({.name = host_name.empty()
                                             ? name + number
                                             : fmt::format("{}/{}{}", host_name, name, number),
                                 .host = index,
                                 .memory_bytes = device.amount("memory", parse_bytes, -1, "24GiB"),
                                 .slower = 1 / device.number("teraflops")});
      if (static_cast<std::int64_t>(cluster.devices.size()) > kMostDevices) {
        device.refuse(node, fmt::format("more than {} devices", kMostDevices));
      }
    }
  }
}

void read_hosts(const std::string& origin, const toml::node& node, DescribedCluster& cluster) {
  const Section host(origin, "[[host]]", *node.as_table(),
                     {"name", "count", "uplink", "latency", "inside", "inside_latency", "device"});
  const auto count = host.whole("count", 1);
  const auto name = host.text("name", "host");
  for (std::int64_t i = 0; i < count; ++i) {
    const auto own = count > 1 ? fmt::format("{}.{}", name, i) : name;
    const auto index = cluster.network.hosts.size();
    cluster.network.hosts.push_back(
        {.name = own,
         .inside = {host.amount("inside_latency", parse_seconds, 10e-6, "10us"),
                    host.amount("inside", parse_rate, 8e9, "16GB/s")},
         .uplink = {host.amount("latency", parse_seconds, 200e-6, "0.2ms"),
                    host.amount("uplink", parse_rate, 125e6, "1Gbit/s")}});
    read_devices(origin, host, index, own, cluster);
  }
}

}  // namespace

DescribedCluster parse_cluster(std::string_view text, const std::string& origin) {
  toml::table file;
  try {
    file = toml::parse(text);
  } catch (const toml::parse_error& error) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("{}:{}: {}", origin, error.source().begin.line, error.description()));
  }
  const Section whole(origin, "the file", file, {"model", "host"});
  DescribedCluster cluster;
  if (const auto* const model = file["model"].as_table()) read_model(origin, *model, cluster);
  for (const auto& host : whole.tables("host")) read_hosts(origin, host, cluster);
  return cluster;
}

DescribedCluster read_cluster(const std::filesystem::path& path) {
  std::ifstream file(path);
  if (!file) throw system_error(fmt::format("reading {}", path.string()), errno);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  return parse_cluster(text, path.string());
}

namespace {

constexpr double kTera = 1e12;
constexpr double kSavedByBlock = 16, kPassingInBlock = 8;
constexpr double kSavedWhole = 4, kPassingWhole = 4;  // of these, on each tensor rank
constexpr double kSumsOfBlock = 2;                    // in each direction
constexpr std::int64_t kHead = 64;                    // numbers
constexpr double kLogitBytes = 4;                     // the loss is computed in float32

Linear each(double per_sample) {
  return {0, per_sample};
}

/// Attention by heads, 4·w² elements, and the MLP by columns, 8·w²: all that takes time.
PartFacts parts_of_block(const TransformerSizes& sizes, double tokens) {
  const auto square = sizes.width * sizes.width;
  const auto heads = sizes.heads > 0 ? sizes.heads : std::max<std::int64_t>(1, sizes.width / kHead);
  const auto summed = each(kSumsOfBlock * tokens);
  return {
      .splits = {{heads, 4 * square, 4 * square, 0}, {4 * sizes.width, 8 * square, 8 * square, 0}},
      .saved = kSavedWhole / kSavedByBlock,
      .forward_peak = (kSavedWhole + 2) / (kSavedByBlock + 2),
      .backward_peak = (kSavedWhole + kPassingWhole) / (kSavedByBlock + kPassingInBlock),
      .forward_s = 0,
      .backward_s = 0,
      .forward_sums = kSumsOfBlock,
      .backward_sums = kSumsOfBlock,
      .forward_summed_bytes = summed,
      .backward_summed_bytes = summed};
}

/// Its matrix is cut by tokens, and its output summed.
PartFacts parts_of_embedding(const TransformerSizes& sizes, double tokens) {
  const auto table = sizes.vocabulary * sizes.width;
  return {.splits = {{sizes.vocabulary, table, 0, table}},
          .forward_sums = 1,
          .forward_summed_bytes = each(tokens)};
}

/// Logits stay in parts: three numbers for each token travel (parallel/tensor/group_ranks.h).
PartFacts parts_of_head(const TransformerSizes& sizes, double tokens, double logits) {
  return {.splits = {{sizes.vocabulary, sizes.vocabulary * sizes.width, 0, 0}},
          .saved = tokens / (2 * logits + tokens),
          .forward_peak = tokens / (logits + tokens),
          .backward_peak = 2 * tokens / (3 * logits + 2 * tokens),
          .forward_s = 0,
          .backward_s = 0,
          .forward_sums = 2,
          .backward_sums = 1,
          .forward_summed_bytes = each(3 * kLogitBytes * static_cast<double>(sizes.context)),
          .backward_summed_bytes = each(tokens)};
}

UnitFacts block_of(const TransformerSizes& sizes, std::int64_t number) {
  const auto t = static_cast<double>(sizes.context), w = static_cast<double>(sizes.width);
  const double tokens = t * w * sizes.activation_bytes;
  const double operations = 24 * t * w * w + 4 * t * t * w;
  return {.name = fmt::format("block {}", number),
          .parameters = 12 * sizes.width * sizes.width + 13 * sizes.width,
          .output = each(tokens),
          .saved = each(kSavedByBlock * tokens),
          .forward_peak = each((kSavedByBlock + 2) * tokens),
          .backward_peak = each((kSavedByBlock + kPassingInBlock) * tokens),
          .forward_s = each(operations / kTera),
          .backward_s = each((kForwardsOfStep - 1) * operations / kTera),
          .operations = operations,
          .in_parts = parts_of_block(sizes, tokens)};
}

}  // namespace

ModelFacts transformer_facts(const TransformerSizes& sizes) {
  const auto t = static_cast<double>(sizes.context), w = static_cast<double>(sizes.width);
  const double tokens = t * w * sizes.activation_bytes;
  ModelFacts facts;
  facts.units.push_back({.name = "embedding",
                         .parameters = sizes.context * sizes.width,
                         .shared = sizes.vocabulary * sizes.width,
                         .output = each(tokens),
                         .saved = each(tokens),
                         .forward_peak = each(2 * tokens),
                         .backward_peak = each(2 * tokens),
                         .in_parts = parts_of_embedding(sizes, tokens)});
  for (std::int64_t layer = 0; layer < sizes.layers; ++layer) {
    facts.units.push_back(block_of(sizes, layer));
  }
  const double logits = t * static_cast<double>(sizes.vocabulary) * kLogitBytes;
  const double operations = 2 * t * w * static_cast<double>(sizes.vocabulary);
  facts.units.push_back({.name = "head",
                         .parameters = 2 * sizes.width,
                         .output = each(logits),
                         .saved = each(2 * logits + tokens),
                         .forward_peak = each(2 * logits + 2 * tokens),
                         .backward_peak = each(3 * logits + 2 * tokens),
                         .forward_s = each(operations / kTera),
                         .backward_s = each((kForwardsOfStep - 1) * operations / kTera),
                         .operations = operations,
                         .in_parts = parts_of_head(sizes, tokens, logits)});
  facts.element_bytes = sizes.element_bytes;
  facts.state_bytes = sizes.state_bytes;
  facts.batch_bytes = 8 * (t + 1);
  facts.sample_weight = sizes.context;
  return facts;
}

}  // namespace bimetal::plan
