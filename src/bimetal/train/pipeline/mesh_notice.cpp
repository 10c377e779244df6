#include "bimetal/train/pipeline/mesh_notice.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdint>
#include <optional>

#include "bimetal/parallel/pipeline/stage_model.h"

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

}  // namespace

std::string notice_of(const parallel::MeshShape& shape, const task::Model& whole,
                      const std::vector<std::size_t>& begins, const job::MeshConfig& mesh,
                      const parallel::StageCuts& cuts) {
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
    return fmt::format("the tensors of a replica are {}: {}", parts, counts_of(whole, first));
  }
  std::vector<std::string> stages;
  for (int stage = 0; stage < shape.stages; ++stage) {
    const auto made = parallel::pipeline::make_stage(whole, begins, shape.stages, stage);
    stages.push_back(fmt::format(
        "{}, {}", parallel::pipeline::describe_units(whole, begins, shape.stages, stage),
        counts_of(made.model, cuts[static_cast<std::size_t>(stage)])));
  }
  return fmt::format("the model in {} stages, schedule \"{}\"{}:\n{}", shape.stages, mesh.schedule,
                     parts, parallel::picture(shape, stages));
}

}  // namespace bimetal::train
