#include "bimetal/parallel/pipeline/runner.h"

#include <torch/torch.h>

#include <algorithm>
#include <exception>
#include <functional>
#include <optional>
#include <utility>

#include "bimetal/base/stopwatch.h"
#include "bimetal/device/device.h"
#include "bimetal/parallel/pipeline/step_run.h"

namespace bimetal::parallel::pipeline {
namespace {

/// Does it, unless this stage has given up, or notes why it could not.
bool try_forward(const StageWork& work, Runner::Result& result,
                 const std::function<void()>& compute) {
  if (result.incomplete) return false;
  try {
    compute();
    return true;
  } catch (...) {
    result.error = std::current_exception();
    if (!work.survivable || !work.survivable(result.error)) throw;
  }
  result.incomplete = true;
  return false;
}

}  // namespace

Runner::Runner(const Mesh& mesh, RunnerOptions options)
    : mesh_(mesh),
      options_(std::move(options)),
      line_{mesh.place().stage, mesh.shape().stages, options_.chunks},
      link_(mesh, options_.device, options_.timeout, options_.compression) {}

Runner::Result Runner::run(const schedule::Deal& deal, const StageWork& work,
                           ParameterStore& store) {
  return StepRun({mesh_, deal, line_}, options_, link_, ++steps_, work, store).run();
}

// In the order of interleaved schedules: a round of micro-batches through one chunk after the
// other.
Runner::Result Runner::run_forward(
    const schedule::Deal& deal, const StageWork& work,
    const std::function<void(int micro_batch, const task::Values& outputs)>& take) {
  const torch::NoGradGuard no_grad;
  const auto step = ++steps_;
  const Route route{mesh_, deal, line_};
  const int count = deal.micro_batches();
  Result result;
  for (int first = 0; first < count; first += line_.stages) {
    for (int chunk = 0; chunk < line_.chunks; ++chunk) {
      for (int i = first; i < std::min(first + line_.stages, count); ++i) {
        if (!route.comes_by(i)) continue;
        const int piece = line_.piece(chunk);
        std::optional<task::Values> inputs;
        if (!line_.begins(piece)) {
          inputs = link_.expect(route.peer(piece - 1, i), {step, true, piece - 1, i}).wait();
          if (!inputs) result.incomplete = true;
        }
        task::Values outputs;
        const bool whole = try_forward(work, result, [&] {
          if (line_.begins(piece)) inputs = work.inputs(i);
          const Stopwatch watch;
          outputs = work.forward(chunk, i, *inputs);
          device::pause_for_speed(options_.speed, watch.seconds());
          if (line_.ends(piece)) take(i, outputs);
        });
        if (line_.ends(piece)) continue;
        const int next = route.peer(piece + 1, i);
        if (whole) {
          link_.send(next, {step, true, piece, i}, outputs);
        } else {
          link_.send_nothing(next, {step, true, piece, i});
        }
      }
    }
  }
  link_.flush();
  return result;
}

}  // namespace bimetal::parallel::pipeline
