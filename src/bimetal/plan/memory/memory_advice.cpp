#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "bimetal/plan/memory/memory_plan.h"

namespace bimetal::plan {
namespace {

std::string_view name_of(Place place) {
  return place == Place::Disk ? "disk" : place == Place::Host ? "host" : "none";
}

std::string kinds(const MemoryUse& use) {
  return fmt::format(
      "parameters {}, gradients {}, optimizer state {}, activations {}, buffers {}, program {}",
      bytes_text(use.parameters), bytes_text(use.gradients), bytes_text(use.optimizer),
      bytes_text(use.activations), bytes_text(use.buffers), bytes_text(use.program));
}

bool asks_mesh(const std::vector<std::string>& keys) {
  return std::ranges::any_of(keys, [](const auto& key) { return key.starts_with("mesh."); });
}

/// The changes to the job for this way.
std::string changes(const MemoryInput& input, const KeptJob& way) {
  const auto text = unsaid(keys_of(way.keeping), input.said);
  const bool otherwise = std::ranges::any_of(input.ranks, [&](const RankMemory& rank) {
    return rank.optimizer != way.keeping.optimizer || rank.parameters != way.keeping.parameters;
  });
  if (way.unlike) return text + ", offloaded as each rank has it";
  return input.said_by_workers && otherwise ? text + ", and no offload_… in --worker" : text;
}

const KeptJob& nearest(const MemoryPlan& plan) {
  return *std::ranges::min_element(plan.ways, {}, &KeptJob::most_missing);
}

std::string short_of(const MemoryInput& input, const KeptJob& way) {
  std::vector<std::string> parts;
  for (std::size_t r = 0; r < input.ranks.size(); ++r) {
    if (way.missing[r] <= 0) continue;
    const auto& use = way.uses[r];
    parts.push_back(fmt::format("{} lacks {}: it would need {} at its peak ({}; {})",
                                input.ranks[r].name, bytes_text(way.missing[r]),
                                bytes_text(use.peak()), use.moment, kinds(use)));
  }
  return fmt::format("{}", fmt::join(parts, "; "));
}

std::vector<std::string> what_would_help(const MemoryInput& input, const MemoryPlan& plan) {
  const auto& close = nearest(plan);
  std::vector<std::string> lines = {
      fmt::format("Nothing that Bimetal can do makes it fit. Nearest comes {}: {}.",
                  changes(input, close), short_of(input, close))};
  const auto pieces = at_least(input, false);
  const bool larger = std::ranges::any_of(
      input.ranks, [](const RankMemory& rank) { return rank.load.at_once > 1; });
  if (larger) {
    const auto other = plan_memory(pieces);
    if (other.best) {
      lines.push_back(fmt::format("With train.micro_batch=1 it would fit: {}.",
                                  changes(input, other.ways[*other.best])));
      return lines;
    }
  }
  double missing = 0;
  for (const double bytes : close.missing) missing += bytes;
  lines.push_back(
      fmt::format("What would help: {} more memory, another worker that has as much, shorter "
                  "samples, or a smaller model.",
                  bytes_text(missing)));
  return lines;
}

}  // namespace

std::string bytes_text(double bytes) {
  if (bytes >= 1024.0 * (1 << 20)) return fmt::format("{:.2f} GiB", bytes / (1 << 30));
  return fmt::format("{:.0f} MiB", bytes / (1 << 20));
}

std::vector<std::string> keys_of(const Keeping& keeping) {
  const auto at_once = keeping.recomputed_at_once;
  const auto recompute = at_once == 0   ? std::string("\"none\"")
                         : at_once == 1 ? std::string("\"all\"")
                                        : fmt::format("{}", at_once);
  return {fmt::format("zero.level={}", keeping.level),
          fmt::format("zero.offload_optimizer=\"{}\"", name_of(keeping.optimizer)),
          fmt::format("zero.offload_parameters=\"{}\"", name_of(keeping.parameters)),
          fmt::format("zero.copies={}", keeping.copies),
          fmt::format("zero.update=\"{}\"", keeping.update_in_backward ? "backward" : "step"),
          fmt::format("train.recompute={}", recompute)};
}

std::string unsaid(const std::vector<std::string>& keys, const std::set<std::string>& said) {
  const auto asks = [&](const char* key) { return std::ranges::find(keys, key) != keys.end(); };
  // Which recomputes where that is needed, but repeats steps for it.
  const bool may_repeat = !asks("zero.update=\"backward\"") &&
                          (asks("mesh.stages=1") || asks("mesh.tensor=1") || !asks_mesh(keys));
  std::vector<std::string> left;
  for (const auto& key : keys) {
    const bool automatic = key == "train.recompute=\"none\"" && may_repeat &&
                           said.contains("train.recompute=\"auto\"");
    if (!automatic && !said.contains(key)) left.push_back(key);
  }
  const bool on_disk =
      asks("zero.offload_optimizer=\"disk\"") || asks("zero.offload_parameters=\"disk\"");
  if (on_disk && said.contains("zero.offload_path=\"\"")) {
    left.push_back("zero.offload_path=\"FOLDER\" (on a fast disk)");
  }
  return left.empty() ? "as the job file has it" : fmt::format("{}", fmt::join(left, ", "));
}

std::string describe(const Keeping& keeping) {
  std::vector<std::string> parts;
  parts.push_back(keeping.level == 0 ? "all on every rank"
                                     : fmt::format("level {}", keeping.level));
  const auto keeps = [&](std::string_view what, Place place) {
    if (place == Place::Device) return;
    parts.push_back(fmt::format("{} on {}", what, place == Place::Disk ? "disk" : "the host"));
  };
  if (keeping.optimizer == keeping.parameters) {
    keeps("states and parameters", keeping.optimizer);
  } else {
    keeps("states", keeping.optimizer);
    keeps("parameters", keeping.parameters);
  }
  if (keeping.copies > 1) parts.push_back("each shard twice");
  if (keeping.update_in_backward) parts.push_back("updated in backward");
  if (keeping.recomputed_at_once > 0) parts.push_back("recomputed");
  return fmt::format("{}", fmt::join(parts, ", "));
}

std::string describe(const KeptJob& way) {
  const auto text = describe(way.keeping);
  return way.unlike ? text + ", offloaded as each rank has it" : text;
}

std::string memory_advice(const MemoryInput& input, const MemoryPlan& plan) {
  std::vector<std::string> lines;
  const auto& asked = plan.asked();
  const bool surely = fits_surely(input, asked), fails = clearly_fails(input, plan);
  if (!surely && !fails) {
    // Free memory is never the same twice: neither answer would be the next run's.
    lines.push_back(
        fmt::format("As the job file has it, this takes about all the memory there is: a plan may "
                    "be wrong by {:.0f} %, and so it may fit or not.",
                    100 * kDoubt));
    lines.push_back(
        plan.sure ? fmt::format("What fits for sure: {}.", changes(input, plan.ways[*plan.sure]))
                  : "Nothing that Bimetal can do leaves clearly more room.");
    return fmt::format("{}", fmt::join(lines, "\n"));
  }
  if (fails) {
    lines.push_back(
        fmt::format("As the job file has it, this does not fit: {}.", short_of(input, asked)));
  }
  const auto best = plan.sure ? plan.sure : plan.best;
  if (!best) {
    for (auto& line : what_would_help(input, plan)) lines.push_back(std::move(line));
  } else if (*best != 0) {
    lines.push_back(fmt::format(
        "{}: {}.", fails ? "The cheapest that fits" : "It would be faster otherwise, and fit, too",
        changes(input, plan.ways[*best])));
  } else {
    lines.push_back("It fits as the job file has it, and nothing that fits is cheaper.");
  }
  return fmt::format("{}", fmt::join(lines, "\n"));
}

}  // namespace bimetal::plan
