#include "bimetal/job/job_keys.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>

#include "bimetal/base/error.h"
#include "bimetal/job/worker_spec.h"
#include "bimetal/net/endpoint.h"

namespace bimetal::job {
namespace {

using Problem = std::optional<std::string>;

constexpr double kMaxNumber = std::numeric_limits<double>::max();
constexpr double kMaxSeconds = 1e6;  // eleven days; far from what a clock's nanoseconds can hold

/// Which numbers a key accepts: from `min` (left out if `above_min`) to `max` (if `below_max`).
struct Range {
  double min = -kMaxNumber;
  double max = kMaxNumber;
  bool above_min = false;
  bool below_max = false;

  bool contains(double value) const {  // false for NaN
    return (above_min ? value > min : value >= min) && (below_max ? value < max : value <= max);
  }
  std::string text() const {
    const auto words = fmt::format(" {} {}", above_min ? "greater than" : "of at least", min);
    if (max == kMaxNumber) return words;
    return words + fmt::format(" and {} {}", below_max ? "less than" : "at most", max);
  }
};

constexpr Range kPositive{.min = 0, .above_min = true};
constexpr Range kNotNegative{.min = 0};
constexpr Range kFraction{.min = 0, .max = 1, .below_max = true};
constexpr Range kRatio{.min = 0, .max = 1};
constexpr Range kShare{.min = 0, .max = 1, .above_min = true};
constexpr Range kMegabytes{.min = 0, .max = 1e6, .above_min = true};
constexpr Range kSeconds{.min = 0, .max = kMaxSeconds, .above_min = true};

std::string unexpected_type(std::string_view expected, const toml::node& node) {
  return fmt::format("expected {}, found {}", expected, type_name(node));
}

template <typename Integer>
Binding whole(Integer& to, std::int64_t min,
              std::int64_t max = std::numeric_limits<std::int64_t>::max()) {
  const auto read = [&to, min, max](const toml::node& node) -> Problem {
    const auto* number = node.as_integer();
    if (!number) return unexpected_type("a whole number", node);
    if (number->get() < min) {
      return fmt::format("expected a whole number of at least {}, found {}", min, number->get());
    }
    if (number->get() > max) {
      return fmt::format("expected a whole number of at most {}, found {}", max, number->get());
    }
    to = static_cast<Integer>(number->get());
    return std::nullopt;
  };
  return {read, [&to] { return fmt::format("{}", to); }};
}

/// Whole numbers are numbers, too: learning_rate = 1 is fine.
std::optional<double> as_number(const toml::node& node) {
  if (const auto* number = node.as_floating_point()) return number->get();
  if (const auto* number = node.as_integer()) return static_cast<double>(number->get());
  return std::nullopt;
}

/// "1.0" and not "1": whoever reads it without the table can tell it from a whole number.
std::string number_text(double value) {
  const auto text = fmt::format("{}", value);
  return text.find_first_of(".e") == std::string::npos ? text + ".0" : text;
}

Binding number(double& to, Range range) {
  const auto read = [&to, range](const toml::node& node) -> Problem {
    const auto value = as_number(node);
    if (!value) return unexpected_type("a number", node);
    if (!range.contains(*value)) {
      return fmt::format("expected a number{}, found {}", range.text(), *value);
    }
    to = *value;
    return std::nullopt;
  };
  return {read, [&to] { return number_text(to); }};
}

Binding flag(bool& to) {
  const auto read = [&to](const toml::node& node) -> Problem {
    const auto* value = node.as_boolean();
    if (!value) return unexpected_type("true or false", node);
    to = value->get();
    return std::nullopt;
  };
  return {read, [&to] { return fmt::format("{}", to); }};
}

Binding text(std::string& to) {
  const auto read = [&to](const toml::node& node) -> Problem {
    const auto* value = node.as_string();
    if (!value) return unexpected_type("a string", node);
    to = value->get();
    return std::nullopt;
  };
  return {read, [&to] { return toml_string(to); }, true};
}

Binding one_of(std::string& to, std::vector<std::string> choices) {
  Binding binding = text(to);
  binding.read = [&to, choices = std::move(choices)](const toml::node& node) -> Problem {
    const auto* value = node.as_string();
    if (!value) return unexpected_type("a string", node);
    if (std::find(choices.begin(), choices.end(), value->get()) == choices.end()) {
      return fmt::format("expected \"{}\", found {}", fmt::join(choices, "\" or \""),
                         toml_string(value->get()));
    }
    to = value->get();
    return std::nullopt;
  };
  return binding;
}

/// "ADDR:PORT", or empty.
Binding endpoint(std::string& to) {
  Binding binding = text(to);
  binding.read = [&to](const toml::node& node) -> Problem {
    const auto* value = node.as_string();
    if (!value) return unexpected_type("a string", node);
    try {
      if (!value->get().empty()) net::parse_endpoint(value->get());
    } catch (const Error& error) {
      return error.what();
    }
    to = value->get();
    return std::nullopt;
  };
  return binding;
}

/// What is wrong with one entry of cluster.workers.
Problem check_worker(const toml::node& node) {
  const auto* spec = node.as_string();
  if (!spec) return unexpected_type("an array of strings", node) + " in it";
  try {
    parse_worker_spec(spec->get());
  } catch (const Error& error) {
    return error.what();
  }
  return std::nullopt;
}

Binding worker_specs(std::vector<std::string>& to) {
  const auto read = [&to](const toml::node& node) -> Problem {
    const auto* array = node.as_array();
    if (!array) return unexpected_type("an array of strings", node);
    std::vector<std::string> specs;
    for (const toml::node& element : *array) {
      if (auto problem = check_worker(element)) return problem;
      specs.push_back(element.as_string()->get());
    }
    to = std::move(specs);
    return std::nullopt;
  };
  const auto write = [&to] {
    std::vector<std::string> parts;
    for (const std::string& value : to) parts.push_back(toml_string(value));
    return fmt::format("[{}]", fmt::join(parts, ", "));
  };
  return {read, write};
}

Problem read_weights(const toml::array& array, std::vector<double>& to) {
  std::vector<double> weights;
  for (const toml::node& element : array) {
    const auto weight = as_number(element);
    if (!weight) return unexpected_type("an array of numbers", element) + " in it";
    if (!kNotNegative.contains(*weight)) {
      return fmt::format("expected shares of at least 0, found {}", *weight);
    }
    weights.push_back(*weight);
  }
  if (std::all_of(weights.begin(), weights.end(), [](double weight) { return weight == 0; })) {
    return "expected at least one share above 0";
  }
  to = std::move(weights);
  return std::nullopt;
}

/// balance = "auto" | "equal" | [3, 1]
Binding balance_policy(ParallelConfig& to) {
  constexpr auto kExpected = R"("auto", "equal" or an array of shares like [3, 1])";
  const auto read = [&to, kExpected](const toml::node& node) -> Problem {
    if (const auto* array = node.as_array()) {
      if (auto problem = read_weights(*array, to.weights)) return problem;
      to.balance = balance::Policy::Fixed;
      return std::nullopt;
    }
    const auto* word = node.as_string();
    if (!word) return unexpected_type(kExpected, node);
    if (word->get() != "auto" && word->get() != "equal") {
      return fmt::format("expected {}, found {}", kExpected, toml_string(word->get()));
    }
    to.balance = word->get() == "auto" ? balance::Policy::Auto : balance::Policy::Equal;
    to.weights.clear();
    return std::nullopt;
  };
  const auto write = [&to]() -> std::string {
    if (to.balance == balance::Policy::Fixed)
      return fmt::format("[{}]", fmt::join(to.weights, ", "));
    return to.balance == balance::Policy::Auto ? "\"auto\"" : "\"equal\"";
  };
  return {read, write};
}

constexpr std::size_t kMostServers = 64;

/// count = 2 | [3, 1]
Binding server_weights(ServersConfig& to) {
  constexpr auto kExpected = "a number of servers or an array of weights like [3, 1]";
  const auto read = [&to](const toml::node& node) -> Problem {
    std::vector<double> weights;
    if (const auto* count = node.as_integer()) {
      if (count->get() < 1 || count->get() > static_cast<std::int64_t>(kMostServers)) {
        return fmt::format("expected 1 to {} servers, found {}", kMostServers, count->get());
      }
      weights.assign(static_cast<std::size_t>(count->get()), 1.0);
    } else if (const auto* array = node.as_array()) {
      for (const toml::node& element : *array) {
        const auto weight = as_number(element);
        if (!weight || !kPositive.contains(*weight)) return "expected weights greater than 0";
        weights.push_back(*weight);
      }
      if (weights.empty() || weights.size() > kMostServers) {
        return fmt::format("expected 1 to {} servers, found {}", kMostServers, weights.size());
      }
    } else {
      return unexpected_type(kExpected, node);
    }
    to.weights = std::move(weights);
    to.weigh = node.is_integer();
    return std::nullopt;
  };
  const auto write = [&to]() -> std::string {
    return to.weigh ? fmt::format("{}", to.weights.size())
                    : fmt::format("[{}]", fmt::join(to.weights, ", "));
  };
  return {read, write};
}

constexpr auto kAlike = Ranks::Alike;
constexpr auto kMayDiffer = Ranks::MayDiffer;

}  // namespace

std::vector<JobKey> job_keys(JobConfig& job) {
  auto& [model, data, train, parallel, servers, compression, checkpoint, cluster, fabric, monitor] =
      job;
  return {
      {"model", "name", kAlike, text(model.name)},
      {"model", "hidden", kAlike, whole(model.hidden, 0)},
      {"data", "name", kAlike, text(data.name)},
      {"data", "path", kMayDiffer, text(data.path)},
      {"data", "send", kAlike, flag(data.send)},
      {"data", "send_max_gb", kAlike, number(data.send_max_gb, kPositive)},
      {"data", "bootstrap_seed", kAlike, whole(data.bootstrap_seed, 0)},
      {"train", "epochs", kAlike, whole(train.epochs, 1)},
      {"train", "steps", kAlike, whole(train.steps, 0)},
      {"train", "global_batch", kAlike, whole(train.global_batch, 1)},
      {"train", "micro_batch", kMayDiffer, whole(train.micro_batch, 0)},
      {"train", "seed", kAlike, whole(train.seed, 0)},
      {"train", "dtype", kAlike, one_of(train.dtype, {"float32", "float64"})},
      {"train", "optimizer", kAlike,
       one_of(train.optimizer, {"sgd", "adam", "adamw", "lars", "lamb"})},
      {"train", "learning_rate", kAlike, number(train.learning_rate, kPositive)},
      {"train", "momentum", kAlike, number(train.momentum, kFraction)},
      {"train", "weight_decay", kAlike, number(train.weight_decay, kNotNegative)},
      {"train", "beta1", kAlike, number(train.beta1, kFraction)},
      {"train", "beta2", kAlike, number(train.beta2, kFraction)},
      {"train", "epsilon", kAlike, number(train.epsilon, kNotNegative)},
      {"train", "trust_coefficient", kAlike, number(train.trust_coefficient, kPositive)},
      {"train", "warmup_steps", kAlike, whole(train.warmup_steps, 0)},
      {"train", "schedule", kAlike, one_of(train.schedule, {"constant", "cosine"})},
      {"train", "decay_steps", kAlike, whole(train.decay_steps, 0)},
      {"train", "min_learning_rate_ratio", kAlike, number(train.min_learning_rate_ratio, kRatio)},
      {"train", "evaluate", kAlike, flag(train.evaluate)},
      {"parallel", "mode", kAlike, one_of(parallel.mode, {"all_reduce", "server"})},
      {"parallel", "balance", kAlike, balance_policy(parallel)},
      {"parallel", "bucket_mb", kAlike, number(parallel.bucket_mb, kMegabytes)},
      {"parallel", "timeout_s", kMayDiffer, number(parallel.timeout_s, kSeconds)},
      {"servers", "count", kAlike, server_weights(servers)},
      {"servers", "replicas", kAlike, whole(servers.replicas, 1, 2)},
      {"servers", "consistency", kAlike, one_of(servers.consistency, {"sync", "async", "bounded"})},
      {"servers", "staleness", kAlike, whole(servers.staleness, 0)},
      {"servers", "prefetch", kAlike, one_of(servers.prefetch, {"auto", "on", "off"})},
      {"servers", "staleness_aware", kAlike, flag(servers.staleness_aware)},
      {"servers", "weight_prediction", kAlike, flag(servers.weight_prediction)},
      {"servers", "max_not_finite", kAlike, whole(servers.max_not_finite, 1)},
      {"compression", "gradients", kAlike,
       one_of(compression.gradients,
              {"none", "float16", "bfloat16", "int8", "int4", "topk", "powersgd", "sign"})},
      {"compression", "parameters", kAlike,
       one_of(compression.parameters, {"none", "float16", "bfloat16", "int8"})},
      {"compression", "links", kAlike, one_of(compression.links, {"between_islands", "all"})},
      {"compression", "topk_density", kAlike, number(compression.topk_density, kShare)},
      {"compression", "topk_warmup_steps", kAlike, whole(compression.topk_warmup_steps, 0)},
      {"compression", "powersgd_rank", kAlike, whole(compression.powersgd_rank, 1)},
      {"checkpoint", "dir", kMayDiffer, text(checkpoint.dir)},
      {"checkpoint", "every_steps", kAlike, whole(checkpoint.every_steps, 0)},
      {"checkpoint", "keep", kMayDiffer, whole(checkpoint.keep, 1)},
      {"cluster", "workers", kMayDiffer, worker_specs(cluster.workers)},
      {"cluster", "join_timeout_s", kMayDiffer, number(cluster.join_timeout_s, kSeconds)},
      {"fabric", "islands", kAlike, one_of(fabric.islands, {"auto", "off"})},
      {"fabric", "transport", kMayDiffer, one_of(fabric.transport, {"auto", "tcp", "shm", "mpi"})},
      {"monitor", "listen", kMayDiffer, endpoint(monitor.listen)},
      {"monitor", "tensorboard_dir", kMayDiffer, text(monitor.tensorboard_dir)},
  };
}

const std::vector<RenamedKey>& renamed_keys() {
  static const auto keys = [] {
    std::vector<RenamedKey> all = {
        {"data", "serve", "data", "send"},
        {"data", "serve_max_gb", "data", "send_max_gb"},
        {"parallel", "servers", "servers", "count"},
        {"parallel", "compression", "compression", "gradients"},
        {"parallel", "pull_compression", "compression", "parameters"},
        {"parallel", "compression_links", "compression", "links"},
    };
    for (const char* name : {"replicas", "consistency", "staleness", "prefetch", "staleness_aware",
                             "weight_prediction", "max_not_finite"}) {
      all.push_back({"parallel", name, "servers", name});
    }
    for (const char* name : {"topk_density", "topk_warmup_steps", "powersgd_rank"}) {
      all.push_back({"parallel", name, "compression", name});
    }
    return all;
  }();
  return keys;
}

std::string toml_string(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7f) {
      out += fmt::format("\\u{:04x}", byte);
    } else {
      out += c;
    }
  }
  return out + '"';
}

std::string_view type_name(const toml::node& node) {
  switch (node.type()) {
    case toml::node_type::table: return "a table";
    case toml::node_type::array: return "an array";
    case toml::node_type::string: return "a string";
    case toml::node_type::integer: return "a whole number";
    case toml::node_type::floating_point: return "a floating-point number";
    case toml::node_type::boolean: return "a boolean";
    case toml::node_type::date: return "a date";
    case toml::node_type::time: return "a time";
    case toml::node_type::date_time: return "a date and time";
    case toml::node_type::none: break;
  }
  return "nothing";
}

}  // namespace bimetal::job
