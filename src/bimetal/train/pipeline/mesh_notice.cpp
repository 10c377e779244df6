#include "bimetal/train/pipeline/mesh_notice.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <numeric>
#include <optional>

#include "bimetal/parallel/pipeline/stage_model.h"
#include "bimetal/plan/model_facts.h"
#include "bimetal/plan/plan.h"
#include "bimetal/task/catalog/job_task.h"

namespace bimetal::train {
namespace {

using parallel::tensor::Cuts;

/// Elements of a tensor rank's part of `model`, whose tensors have the whole model's names.
std::int64_t elements_of(const task::Model& model, const std::optional<Cuts>& cuts, int rank) {
  std::int64_t all = 0;
  for (const auto& [name, tensor] : model.named_parameters()) {
    if (!cuts || !cuts->has(name)) {
      all += tensor.numel();
      continue;
    }
    std::int64_t part = 1;
    for (const auto size : cuts->part_sizes(name, rank)) part *= size;
    all += part;
  }
  return all;
}

/// "1024 : 512 parameters"
std::string counts_of(const task::Model& model, const std::optional<Cuts>& cuts) {
  std::vector<std::int64_t> counts;
  for (int rank = 0; rank < (cuts ? cuts->ranks() : 1); ++rank) {
    counts.push_back(elements_of(model, cuts, rank));
  }
  return fmt::format("{} parameters", fmt::join(counts, " : "));
}

/// ", 1.2 TFLOP a step", for ranks with tensors in parts: in proportion to their weights, by which
/// matrices are dealt out.
std::string work_text(double operations, const std::optional<Cuts>& cuts) {
  if (operations == 0) return "";
  const auto weights = cuts ? cuts->weights() : std::vector<double>{1};
  const double sum = std::reduce(weights.begin(), weights.end());
  std::vector<std::string> texts;
  for (const double weight : weights) {
    texts.push_back(plan::operations_text(operations * weight / sum));
  }
  return fmt::format(", {} a step", fmt::join(texts, " : "));
}

/// The operations of a stage's pieces.
double operations_of(const Operations& all, const std::vector<std::size_t>& begins, int stages,
                     int stage) {
  double sum = 0;
  if (all.empty()) return sum;
  for (const auto& [begin, end] :
       parallel::schedule::pieces_of(begins, all.size(), stages, stage)) {
    for (auto unit = begin; unit < end; ++unit) sum += all[unit];
  }
  return sum;
}

}  // namespace

Operations operations_of_replica(const task::JobTask& task, std::int64_t global_batch,
                                 const parallel::MeshShape& shape) {
  auto operations = task::unit_operations(task);
  const auto samples = static_cast<double>(global_batch) / (shape.even() ? shape.replicas : 1);
  for (auto& one : operations) one *= plan::kForwardsOfStep * samples;
  return operations;
}

std::string notice_of(const parallel::MeshShape& shape, const task::Model& whole,
                      const std::vector<std::size_t>& begins, const job::MeshConfig& mesh,
                      const parallel::StageCuts& cuts, const Operations& operations) {
  const auto& first = cuts.front();
  std::string parts;
  if (!shape.parts.empty()) {
    parts = fmt::format(", their tensors in parts on {} ranks", fmt::join(shape.parts, ", "));
  } else if (first) {
    parts = fmt::format("in parts on {} ranks{}, by weights of {:.3g}", first->ranks(),
                        mesh.sequence_parallel ? ", as are the sequences between them" : "",
                        fmt::join(first->weights(), " : "));
    if (shape.stages > 1) parts = ", the tensors of each " + parts;
  }
  if (shape.stages == 1) {
    const double all = std::reduce(operations.begin(), operations.end());
    return fmt::format("the tensors of a replica are {}: {}{}", parts, counts_of(whole, first),
                       work_text(all, first));
  }
  std::vector<std::string> stages;
  for (int stage = 0; stage < shape.stages; ++stage) {
    const auto made = parallel::pipeline::make_stage(whole, begins, shape.stages, stage);
    stages.push_back(fmt::format(
        "{}, {}{}", parallel::pipeline::describe_units(whole, begins, shape.stages, stage),
        counts_of(made.model, cuts[static_cast<std::size_t>(stage)]),
        work_text(operations_of(operations, begins, shape.stages, stage) /
                      (shape.even() ? 1 : shape.replicas_of(stage)),
                  cuts[static_cast<std::size_t>(stage)])));
  }
  return fmt::format("the model in {} stages, schedule \"{}\"{}:\n{}", shape.stages, mesh.schedule,
                     parts, parallel::picture(shape, stages));
}

}  // namespace bimetal::train
