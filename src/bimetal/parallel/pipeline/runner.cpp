#include "bimetal/parallel/pipeline/runner.h"

#include <torch/torch.h>

#include <algorithm>
#include <optional>

#include "bimetal/base/stopwatch.h"
#include "bimetal/device/device.h"
#include "bimetal/parallel/pipeline/step_run.h"

namespace bimetal::parallel::pipeline {

Runner::Runner(const Mesh& mesh, RunnerOptions options)
    : mesh_(mesh),
      options_(std::move(options)),
      line_{mesh.place().stage, mesh.shape().stages, options_.chunks},
      link_(mesh, options_.device, options_.timeout) {}

Runner::Result Runner::run(const schedule::Deal& deal, const StageWork& work,
                           ParameterStore& store) {
  return StepRun({mesh_, deal, line_}, options_, link_, ++steps_, work, store).run();
}

// In the order of interleaved schedules: a round of micro-batches through one chunk after the
// other.
void Runner::run_forward(
    const schedule::Deal& deal, const StageWork& work,
    const std::function<void(int micro_batch, const task::Values& outputs)>& take) {
  const torch::NoGradGuard no_grad;
  const auto step = ++steps_;
  const Route route{mesh_, deal, line_};
  const int count = deal.micro_batches();
  for (int first = 0; first < count; first += line_.stages) {
    for (int chunk = 0; chunk < line_.chunks; ++chunk) {
      for (int i = first; i < std::min(first + line_.stages, count); ++i) {
        if (!route.comes_by(i)) continue;
        const int piece = line_.piece(chunk);
        auto inputs =
            line_.begins(piece)
                ? work.inputs(i)
                : link_.expect(route.peer(piece - 1, i), {step, true, piece - 1, i}).wait().value();
        const Stopwatch watch;
        const auto outputs = work.forward(chunk, i, inputs);
        device::pause_for_speed(options_.speed, watch.seconds());
        if (line_.ends(piece)) {
          take(i, outputs);
        } else {
          link_.send(route.peer(piece + 1, i), {step, true, piece, i}, outputs);
        }
      }
    }
  }
  link_.flush();
}

}  // namespace bimetal::parallel::pipeline
