#include "bimetal/predict/mesh/through_stages.h"

#include <utility>
#include <vector>

namespace bimetal::predict {

using parallel::pipeline::StageModel;
using parallel::pipeline::StageWork;

StageWork forward_alone(const StageModel& stage,
                        std::function<task::Values(int micro_batch)> inputs) {
  StageWork work;
  work.inputs = std::move(inputs);
  work.forward = [&stage](int chunk, int /*micro_batch*/, const task::Values& values) {
    return task::run_units(stage.pieces[static_cast<std::size_t>(chunk)], values);
  };
  return work;
}

Through through_stages(const parallel::Mesh& mesh, const StageModel& stage,
                       parallel::pipeline::Runner& runner, DealChunks deal) {
  const auto& place = mesh.place();
  return {.part = mesh.shape().even() ? place.replica : 0,
          .counts = place.tensor == 0,
          .run = [&stage, &runner, deal = std::move(deal)](std::int64_t first, std::int64_t last,
                                                           const Through::Inputs& inputs,
                                                           const Through::Take& take) {
            const std::vector<std::int64_t> chunks(static_cast<std::size_t>(last - first), 1);
            runner.run_forward(
                deal(chunks), forward_alone(stage, [&](int i) { return inputs(first + i); }),
                [&](int i, const task::Values& outputs) { take(first + i, outputs); });
          }};
}

}  // namespace bimetal::predict
