#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <string_view>
#include <vector>

#include "bimetal/plan/memory/memory_plan.h"
#include "bimetal/plan/mesh/mesh_plan.h"
#include "bimetal/plan/plan.h"

namespace bimetal::plan {
namespace {

constexpr std::size_t kNamedInOrder = 16;

std::string_view plural(std::size_t count) {
  return count == 1 ? "" : "s";
}

std::string kept(const Keeping& keeping) {
  std::string text;
  if (keeping.level > 0) text += fmt::format(", ZeRO level {}", keeping.level);
  if (keeping.optimizer == Place::Disk) text += ", states on disk";
  if (keeping.parameters == Place::Disk) text += ", parameters on disk";
  if (keeping.recomputed_at_once > 0) text += ", recomputed";
  return text;
}

std::string rate_text(double bytes_per_s) {
  return fmt::format("{:.3g} Gbit/s", 8e-9 * bytes_per_s);
}

double percent(double longer, double shorter) {
  return 100 * (longer / shorter - 1);
}

std::string lacks(const Cluster& cluster, const MeshChoice& choice) {
  return fmt::format("does not fit: {} lacks {}", cluster.device(choice.missing_on).name,
                     bytes_text(choice.missing_bytes));
}

/// The largest part of a step's time beyond the work of its devices.
std::string where_time_goes(const MeshChoice& choice) {
  constexpr double kTelling = 0.1;  // of a step
  if (choice.summed_s > kTelling * choice.step_s) {
    return sums_text(choice);
  }
  switch (choice.scheme) {
    case Scheme::Tensor: return "what every device computes whole, and pieces that do not divide";
    case Scheme::Alone: return "one device does all the work";
    case Scheme::Data:
      return choice.waiting_s > kTelling * choice.step_s
                 ? fmt::format("{} of a step for sending that nothing hides",
                               seconds_text(choice.waiting_s))
                 : "its devices compute for longer";
    case Scheme::Pipeline: break;
  }
  return choice.sent_s > 0.2 * choice.step_s
             ? fmt::format("{} for exchanging gradients", seconds_text(choice.sent_s))
             : fmt::format("its devices are idle for {:.0f} % of the time", 100 * choice.bubble);
}

/// "a", or of those that have its tensors in parts "a + b".
std::string replica_name(const Cluster& cluster, const MeshChoice& choice, std::size_t stage,
                         std::size_t replica) {
  const auto& own = choice.stages[stage];
  std::vector<std::string> names;
  for (std::size_t part = 0; part < own.parts(); ++part) {
    names.push_back(cluster.device(own.devices[replica * own.parts() + part]).name);
  }
  return fmt::format("{}", fmt::join(names, " + "));
}

/// "0 to 3", or with several pieces "0 to 3 and 8".
std::string units_of(const MeshStage& stage) {
  std::vector<std::string> ranges;
  for (const auto& [begin, end] : stage.pieces) {
    ranges.push_back(end - begin == 1 ? fmt::format("{}", begin)
                                      : fmt::format("{} to {}", begin, end - 1));
  }
  return fmt::format("{}", fmt::join(ranges, " and "));
}

std::string work_of(const Cluster& cluster, const MeshChoice& choice) {
  std::vector<std::string> lines;
  for (std::size_t s = 0; s < choice.stages.size(); ++s) {
    const auto& stage = choice.stages[s];
    constexpr std::size_t kNamed = 4;
    std::vector<std::string> names;
    const auto replicas = stage.replicas();
    for (std::size_t r = 0; r < std::min(kNamed, replicas); ++r) {
      names.push_back(
          fmt::format("{} ({} samples)", replica_name(cluster, choice, s, r), stage.samples[r]));
    }
    if (replicas > kNamed) names.push_back(fmt::format("{} more", replicas - kNamed));
    lines.push_back(
        choice.scheme == Scheme::Pipeline
            ? fmt::format("stage {}: units {} on {}", s, units_of(stage), fmt::join(names, ", "))
            : fmt::format("samples: {}", fmt::join(names, ", ")));
    if (lines.size() == 8 && choice.stages.size() > 9) {
      lines.push_back(fmt::format("and {} stages more", choice.stages.size() - 8));
      break;
    }
  }
  return fmt::format("{}", fmt::join(lines, "\n"));
}

bool is_interleaved(const MeshChoice& choice) {
  return choice.schedule == parallel::schedule::Kind::interleaved;
}

/// "2", or by stage "1 + 2".
std::string counts_text(const std::vector<std::size_t>& counts) {
  return all_alike(counts) ? fmt::format("{}", counts.front())
                           : fmt::format("{}", fmt::join(counts, " + "));
}

/// mesh.replicas=2, or by stage mesh.replicas=[1, 2].
std::string counts_key(std::string_view name, const std::vector<std::size_t>& counts) {
  return all_alike(counts) ? fmt::format("mesh.{}={}", name, counts.front())
                           : fmt::format("mesh.{}=[{}]", name, fmt::join(counts, ", "));
}

std::string weights_text(const std::vector<double>& weights, std::string_view between) {
  std::vector<std::string> texts;
  for (const double weight : weights) texts.push_back(fmt::format("{:.4g}", weight));
  return fmt::format("{}", fmt::join(texts, between));
}

/// The numbers of parts that stages have, each once.
std::vector<std::vector<double>> weights_in(const MeshChoice& choice) {
  std::vector<std::vector<double>> all;
  for (const auto& stage : choice.stages) {
    const bool known = std::ranges::find(all, stage.part_weights) != all.end();
    if (stage.parts() > 1 && !known) all.push_back(stage.part_weights);
  }
  return all;
}

/// "tensors in parts on 2", with their weights where they are unlike.
std::string parts_text(const MeshChoice& choice) {
  std::vector<std::string> unlike;
  for (const auto& weights : weights_in(choice)) {
    const auto [least, most] = std::ranges::minmax(weights);
    if (least != most) unlike.push_back(weights_text(weights, " : "));
  }
  const auto text = fmt::format("tensors in parts on {}", counts_text(choice.parts()));
  return unlike.empty() ? text : text + fmt::format(" ({})", fmt::join(unlike, ", "));
}

/// mesh.tensor_weights, as a job file can say it.
std::string weights_key(const MeshChoice& choice) {
  const auto all = weights_in(choice);
  const bool one = all.size() == 1;
  const bool equal = std::ranges::all_of(all, all_alike<double>);
  return fmt::format("mesh.tensor_weights={}",
                     one     ? fmt::format("[{}]", weights_text(all.front(), ", "))
                     : equal ? "\"equal\""
                             : "\"speed\"");
}

}  // namespace

std::string describe(const Cluster& cluster, const MeshChoice& choice) {
  const auto count = static_cast<std::size_t>(choice.devices());
  if (choice.scheme == Scheme::Alone) {
    return fmt::format("{} alone{}", cluster.device(choice.stages[0].devices[0]).name,
                       kept(choice.keeping));
  }
  if (choice.scheme == Scheme::Data) {
    return fmt::format("data parallel over {}{}", count, kept(choice.keeping));
  }
  const auto counts = choice.replicas();
  const bool single = std::ranges::max(counts) == 1;
  if (choice.scheme == Scheme::Tensor) {
    const auto times = counts[0] > 1 ? fmt::format(" × {} replicas", counts[0]) : "";
    return parts_text(choice) + times + kept(choice.keeping);
  }
  const auto replicas =
      single ? std::string()
             : fmt::format("{} {} replicas", all_alike(counts) ? " ×" : " of", counts_text(counts));
  const auto parts = choice.most_parts() > 1 ? ", " + parts_text(choice) : "";
  const auto chunks = is_interleaved(choice) ? fmt::format(" × {} chunk{}", choice.chunks,
                                                           choice.chunks == 1 ? "" : "s")
                                             : "";
  return fmt::format("{} stages{}{}, {}{} × {} micro-batch{}{}", choice.stages.size(), replicas,
                     parts, to_string(choice.schedule), chunks, choice.micro_batches,
                     choice.micro_batches == 1 ? "" : "es", kept(choice.keeping));
}

std::vector<std::string> key_list(const MeshChoice& choice) {
  std::vector<std::string> keys = {"mesh.stages=1", "mesh.cuts=[]", "mesh.schedule=\"1f1b\"",
                                   "mesh.micro_batches=0", "compression.activations=\"none\""};
  const auto counts = choice.replicas();
  if (choice.scheme == Scheme::Pipeline) {
    auto cuts = choice.begins();
    cuts.erase(cuts.begin());
    keys = {fmt::format("mesh.stages={}", choice.stages.size()),
            fmt::format("mesh.cuts=[{}]", fmt::join(cuts, ", ")),
            fmt::format("mesh.schedule=\"{}\"", to_string(choice.schedule)),
            fmt::format("mesh.micro_batches={}", choice.micro_batches)};
    if (is_interleaved(choice)) keys.push_back(fmt::format("mesh.chunks={}", choice.chunks));
  }
  if (choice.most_parts() > 1) {
    keys.push_back(counts_key("tensor", choice.parts()));
    keys.push_back(weights_key(choice));
  } else {
    keys.insert(keys.end(), {"mesh.tensor=1", "mesh.tensor_weights=\"equal\""});
  }
  if (choice.most_parts() == 1 || choice.keeping.level > 0 || !all_alike(choice.parts())) {
    keys.push_back("mesh.sequence_parallel=false");
  }
  const bool several = std::ranges::max(counts) > 1 && choice.scheme != Scheme::Data;
  keys.push_back(several ? counts_key("replicas", counts) : "mesh.replicas=\"auto\"");
  if (const auto most = choice.most_at_once(); most > 0) {
    keys.push_back(fmt::format("train.micro_batch={}", most));
  }
  std::ranges::move(keys_of(choice.keeping), std::back_inserter(keys));
  return keys;
}

std::string keys_of(const MeshChoice& choice) {
  return fmt::format("{}", fmt::join(key_list(choice), ", "));
}

std::string sums_text(const MeshChoice& choice) {
  return fmt::format("sums of activations take {} of a step, over a link of {}",
                     seconds_text(choice.summed_s), rate_text(choice.sums_bytes_per_s));
}

std::string why_not(const Cluster& cluster, const MeshChoice& choice, const MeshChoice* best) {
  if (!choice.fits()) return lacks(cluster, choice);
  if (!best) return "";
  return fmt::format("{:.0f} % slower: {}", percent(choice.step_s, best->step_s),
                     where_time_goes(choice));
}

std::string beside(const MeshChoice& other, const MeshChoice* best) {
  if (!best) return "fits, which nothing does in the job's precision";
  return fmt::format("{:.2f} times as fast as the best in the job's precision",
                     best->step_s / other.step_s);
}

std::string mesh_advice(const Cluster& cluster, const MeshPlan& plan) {
  std::vector<std::string> in_lower;
  if (plan.lower) {
    in_lower.push_back(fmt::format(
        "With train.precision = \"{}\", which changes what is computed: {}, {} a step, {}.",
        plan.lower->name, describe(cluster, plan.lower->best),
        seconds_text(plan.lower->best.step_s), plan.lower->best.reason));
  }
  if (plan.best.empty()) {
    std::vector<std::string> lines = {"Nothing fits."};
    if (!plan.others.empty()) {
      const auto& nearest = plan.others.front();
      lines.push_back(
          fmt::format("Nearest comes {}: {}.", describe(cluster, nearest), nearest.reason));
    }
    std::ranges::move(in_lower, std::back_inserter(lines));
    return fmt::format("{}", fmt::join(lines, "\n"));
  }
  const auto& best = plan.best.front();
  const auto used = static_cast<std::size_t>(best.devices());
  std::vector<std::string> lines = {
      fmt::format("Take {}: {} a step.", describe(cluster, best), seconds_text(best.step_s)),
      work_of(cluster, best)};
  const auto alone = std::ranges::find(plan.best, Scheme::Alone, &MeshChoice::scheme);
  if (best.scheme == Scheme::Alone && cluster.size() > 1) {
    lines.push_back(fmt::format("The whole fits on {}, and no way to share it is faster.",
                                cluster.device(best.stages[0].devices[0]).name));
  } else if (alone != plan.best.end()) {
    lines.push_back(fmt::format("That is {:.2f} times what {} does alone.",
                                alone->step_s / best.step_s,
                                cluster.device(alone->stages[0].devices[0]).name));
  } else if (cluster.size() > 1) {
    lines.push_back("No device has the memory for it alone.");
  }
  if (best.scheme != Scheme::Alone && used < static_cast<std::size_t>(cluster.size())) {
    const auto idle = static_cast<std::size_t>(cluster.size()) - used;
    lines.push_back(fmt::format("No use was found for {} more device{}: it would not be faster.",
                                idle, plural(idle)));
  }
  lines.push_back(fmt::format("In the job file: {}.", unsaid(key_list(best), plan.said)));
  const bool ordered = best.scheme == Scheme::Pipeline || best.scheme == Scheme::Tensor;
  if (ordered && used <= kNamedInOrder) {
    std::vector<std::string> names;
    for (const auto& stage : best.stages) {
      for (const int device : stage.devices) names.push_back(cluster.device(device).name);
    }
    lines.push_back(fmt::format("Workers in the order of {}: {}.",
                                best.most_parts() > 1 ? "the parts" : "the stages",
                                fmt::join(names, ", ")));
  }
  std::ranges::move(in_lower, std::back_inserter(lines));
  return fmt::format("{}", fmt::join(lines, "\n"));
}

}  // namespace bimetal::plan
