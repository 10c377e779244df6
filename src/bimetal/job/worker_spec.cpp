#include "bimetal/job/worker_spec.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "bimetal/base/error.h"
#include "bimetal/base/typed_text.h"
#include "bimetal/job/job_config.h"

namespace bimetal::job {
namespace {

constexpr std::array<std::string_view, 5> kTypes = {"auto", "cpu", "cuda", "mps", "xpu"};

constexpr std::array<std::string_view, 5> kPrecisions = {"float32", "tf32", "bfloat16", "float16",
                                                         "auto"};
constexpr std::array<std::string_view, 3> kPlaces = {"none", "host", "disk"};

/// More threads than any machine has: a larger number is a typing error. Each machine has its own
/// limit (device::apply_worker_limits).
constexpr int kMostThreads = 1024;

struct Unit {
  std::string_view name;
  std::uint64_t bytes;
};

// Binary units first and descending: to_string takes the unit that divides the size and leaves the
// smallest number, and the first among several.
constexpr std::array<Unit, 9> kUnits = {{{"TiB", 1ull << 40},
                                         {"GiB", 1ull << 30},
                                         {"MiB", 1ull << 20},
                                         {"KiB", 1ull << 10},
                                         {"TB", 1'000'000'000'000},
                                         {"GB", 1'000'000'000},
                                         {"MB", 1'000'000},
                                         {"KB", 1'000},
                                         {"B", 1}}};

[[noreturn]] void fail(std::string_view spec, const std::string& flaw) {
  throw Error(
      ErrorCode::InvalidArgument,
      fmt::format("worker \"{}\": {}; write TYPE[:INDEX][,KEY=VALUE]… as in \"cuda:0\" or "
                  "\"cpu:threads=1,speed=0.25,memory=2GiB\" (types: {}; keys: threads, speed, "
                  "memory, precision, offload_optimizer, offload_parameters, offload_path)",
                  spec, flaw, fmt::join(kTypes, ", ")));
}

std::optional<int> to_int(std::string_view text) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::optional<std::uint64_t> to_bytes(std::string_view text) {
  const auto bytes = parse_bytes(text);
  if (!bytes || *bytes < 1 ||
      *bytes > static_cast<double>(std::numeric_limits<std::int64_t>::max())) {
    return std::nullopt;
  }
  return static_cast<std::uint64_t>(*bytes);
}

std::string bytes_text(std::uint64_t bytes) {
  const Unit* largest = &kUnits.back();
  for (const Unit& unit : kUnits) {
    if (bytes % unit.bytes == 0 && unit.bytes > largest->bytes) largest = &unit;
  }
  return fmt::format("{}{}", bytes / largest->bytes, largest->name);
}

std::string known_word(std::string_view spec, std::string_view key, std::string_view value,
                       std::span<const std::string_view> names) {
  if (std::ranges::find(names, value) == names.end())
    fail(spec, fmt::format("{}=\"{}\" is none of {}", key, value, fmt::join(names, ", ")));
  return std::string(value);
}

void parse_option(std::string_view spec, std::string_view key, std::string_view value,
                  WorkerSpec& result) {
  if (key == "threads") {
    result.threads = to_int(value);
    if (!result.threads || *result.threads < 1 || *result.threads > kMostThreads)
      fail(spec,
           fmt::format("threads=\"{}\" is not a whole number from 1 to {}", value, kMostThreads));
  } else if (key == "speed") {
    const auto speed = parse_number(value);
    if (!speed || *speed <= 0 || *speed > 1)
      fail(spec, fmt::format("speed=\"{}\" is not a number above 0 and at most 1", value));
    result.speed = *speed;
  } else if (key == "memory") {
    result.memory_bytes = to_bytes(value);
    if (!result.memory_bytes)
      fail(spec, fmt::format("memory=\"{}\" is not a size with a unit, such as 2GiB", value));
  } else if (key == "precision") {
    result.precision = known_word(spec, key, value, kPrecisions);
  } else if (key == "offload_optimizer") {
    result.offload_optimizer = known_word(spec, key, value, kPlaces);
  } else if (key == "offload_parameters") {
    result.offload_parameters = known_word(spec, key, value, kPlaces);
  } else if (key == "offload_path") {
    if (value.empty()) fail(spec, "offload_path is empty");
    result.offload_path = value;
  } else {
    fail(spec, fmt::format("unknown key \"{}\"", key));
  }
}

void parse_index(std::string_view spec, std::string_view item, WorkerSpec& result) {
  if (result.type == "auto" || result.type == "cpu")
    fail(spec, fmt::format("\"{}\" takes no index, but \"{}\" follows it", result.type, item));
  result.index = to_int(item);
  if (!result.index || *result.index < 0 || *result.index > 127)
    fail(spec, fmt::format("\"{}\" is no index of a device (0 to 127)", item));
}

}  // namespace

WorkerSpec parse_worker_spec(std::string_view text) {
  WorkerSpec result;
  const auto colon = std::min(text.find(':'), text.size());
  result.type = text.substr(0, colon);
  if (std::ranges::find(kTypes, result.type) == kTypes.end())
    fail(text, fmt::format("unknown type \"{}\"", result.type));
  if (colon == text.size()) return result;

  std::vector<std::string_view> keys;
  std::string_view rest = text.substr(colon + 1);
  for (bool first = true;; first = false) {
    const bool index_first = first && rest.find_first_not_of("0123456789") == rest.find(':');
    const auto comma = std::min(rest.find(index_first ? ':' : ','), rest.size());
    const std::string_view item = rest.substr(0, comma);
    const auto equals = item.find('=');
    if (item.empty()) fail(text, "an item is empty");
    if (equals != std::string_view::npos) {
      const std::string_view key = item.substr(0, equals);
      if (std::ranges::find(keys, key) != keys.end())
        fail(text, fmt::format("\"{}\" is given twice", key));
      keys.push_back(key);
      parse_option(text, key, item.substr(equals + 1), result);
    } else if (first) {
      parse_index(text, item, result);
    } else {
      fail(text, fmt::format("\"{}\" is neither an index after the type nor KEY=VALUE", item));
    }
    if (comma == rest.size()) return result;
    rest.remove_prefix(comma + 1);
  }
}

std::string with_device(WorkerSpec spec, std::string device) {
  spec.type = std::move(device);
  spec.index.reset();
  return to_string(spec);
}

std::string to_string(const WorkerSpec& spec) {
  std::vector<std::string> items;
  if (spec.index) items.push_back(fmt::format("{}", *spec.index));
  if (spec.threads) items.push_back(fmt::format("threads={}", *spec.threads));
  if (spec.speed != 1.0) items.push_back(fmt::format("speed={}", spec.speed));
  if (spec.memory_bytes) items.push_back(fmt::format("memory={}", bytes_text(*spec.memory_bytes)));
  const auto add = [&](std::string_view key, const std::string& value) {
    if (!value.empty()) items.push_back(fmt::format("{}={}", key, value));
  };
  add("precision", spec.precision);
  add("offload_optimizer", spec.offload_optimizer);
  add("offload_parameters", spec.offload_parameters);
  add("offload_path", spec.offload_path);
  return items.empty() ? spec.type : fmt::format("{}:{}", spec.type, fmt::join(items, ","));
}

const std::string& precision_of(const JobConfig& job, const WorkerSpec& worker) {
  return worker.precision.empty() ? job.train.precision : worker.precision;
}

JobConfig as_worker_has_it(JobConfig job, const WorkerSpec& worker) {
  const auto take = [](std::string& key, const std::string& own) {
    if (!own.empty()) key = own;
  };
  take(job.zero.offload_optimizer, worker.offload_optimizer);
  take(job.zero.offload_parameters, worker.offload_parameters);
  take(job.zero.offload_path, worker.offload_path);
  return job;
}

}  // namespace bimetal::job
