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
                  describe(close, true), short_of(input, close))};
  const auto pieces = at_least(input, false);
  const bool larger = std::ranges::any_of(
      input.ranks, [](const RankMemory& rank) { return rank.load.at_once > 1; });
  if (larger) {
    const auto other = plan_memory(pieces);
    if (other.best) {
      lines.push_back(fmt::format("With train.micro_batch=1 it would fit: {}.",
                                  describe(other.ways[*other.best], true)));
      return lines;
    }
  }
  double missing = 0;
  for (const double bytes : close.missing) missing += bytes;
  lines.push_back(
      fmt::format("What would help: {} more memory, another worker that has as much, "
                  "shorter samples, or a smaller model.",
                  bytes_text(missing)));
  return lines;
}

}  // namespace

std::string bytes_text(double bytes) {
  if (bytes >= 1024.0 * (1 << 20)) return fmt::format("{:.2f} GiB", bytes / (1 << 30));
  return fmt::format("{:.0f} MiB", bytes / (1 << 20));
}

std::string describe(const Keeping& keeping, bool as_keys) {
  std::vector<std::string> parts;
  if (as_keys) {
    parts.push_back(fmt::format("zero.level={}", keeping.level));
    if (keeping.optimizer != Place::Device) {
      parts.push_back(fmt::format("zero.offload_optimizer=\"{}\"", name_of(keeping.optimizer)));
    }
    if (keeping.parameters != Place::Device) {
      parts.push_back(fmt::format("zero.offload_parameters=\"{}\"", name_of(keeping.parameters)));
    }
    if (keeping.update_in_backward) parts.push_back("zero.update=\"backward\"");
    // "auto", which repeats steps, does not go with it.
    const bool says_none = keeping.update_in_backward && keeping.recomputed_at_once == 0;
    if (says_none) parts.push_back("train.recompute=\"none\"");
    if (keeping.recomputed_at_once == 1) parts.push_back("train.recompute=\"all\"");
    if (keeping.recomputed_at_once > 1) {
      parts.push_back(fmt::format("train.recompute={}", keeping.recomputed_at_once));
    }
    return fmt::format("{}", fmt::join(parts, ", "));
  }
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

std::string describe(const KeptJob& way, bool as_keys) {
  const auto text = describe(way.keeping, as_keys);
  return way.unlike ? text + ", offloaded as each rank has it" : text;
}

std::string memory_advice(const MemoryInput& input, const MemoryPlan& plan) {
  std::vector<std::string> lines;
  const auto& asked = plan.asked();
  if (!asked.fits()) {
    lines.push_back(
        fmt::format("As the job file has it, this does not fit: {}.", short_of(input, asked)));
  }
  if (!plan.best) {
    for (auto& line : what_would_help(input, plan)) lines.push_back(std::move(line));
  } else if (*plan.best != 0) {
    const auto& best = plan.ways[*plan.best];
    lines.push_back(fmt::format(
        "{}: {}.",
        asked.fits() ? "It would be faster otherwise, and fit, too" : "The cheapest that fits",
        describe(best, true)));
  } else {
    lines.push_back("It fits as the job file has it, and nothing that fits is cheaper.");
  }
  return fmt::format("{}", fmt::join(lines, "\n"));
}

}  // namespace bimetal::plan
