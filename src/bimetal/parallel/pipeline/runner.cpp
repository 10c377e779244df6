#include "bimetal/parallel/pipeline/runner.h"

#include <torch/csrc/api/include/torch/types.h>
#include <torch/csrc/api/include/torch/utils.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "bimetal/device/device.h"
#include "bimetal/parallel/pipeline/stage_seconds.h"
#include "bimetal/parallel/pipeline/step_run.h"

namespace bimetal::parallel::pipeline {
namespace {

/// A piece of this stage that a micro-batch goes through.
struct Visit {
  int piece, micro_batch;
};

std::vector<Visit> visits_of(const Line& line, const Route& route, int micro_batches) {
  std::vector<Visit> visits;
  for (int first = 0; first < micro_batches; first += line.stages) {
    for (int chunk = 0; chunk < line.chunks; ++chunk) {
      for (int i = first; i < std::min(first + line.stages, micro_batches); ++i) {
        if (route.comes_by(i)) visits.push_back({line.piece(chunk), i});
      }
    }
  }
  return visits;
}

}  // namespace

Runner::Runner(const Mesh& mesh, RunnerOptions options)
    : mesh_(mesh),
      options_(std::move(options)),
      line_{mesh.place().stage, mesh.shape().stages, options_.chunks},
      link_(mesh, options_.device, {options_.timeout, options_.timeout_name}, options_.compression,
            options_.vendor, options_.chunks) {}

Runner::Result Runner::run(const schedule::Deal& deal, const StageWork& work,
                           ParameterStore& store) {
  return StepRun({mesh_, deal, line_}, options_, link_, ++steps_, work, store).run();
}

// In the order of interleaved schedules: a round of micro-batches through one chunk after the
// other. The next visit's inputs arrive while this one computes.
Runner::Result Runner::run_forward(
    const schedule::Deal& deal, const StageWork& work,
    const std::function<void(int micro_batch, const task::Values& outputs)>& take) {
  const torch::NoGradGuard no_grad;
  const auto step = ++steps_;
  const Route route{mesh_, deal, line_};
  const auto visits = visits_of(line_, route, deal.micro_batches());
  const auto expect = [&](std::size_t at) -> Incoming {
    if (at >= visits.size() || line_.begins(visits[at].piece)) return {};
    const auto [piece, micro_batch] = visits[at];
    return link_.expect(route.peer(piece - 1, micro_batch), {step, true, piece - 1, micro_batch});
  };
  Result result;
  const auto attempt = [&](Doing doing, const std::function<void()>& what) {
    result.incomplete = !done(work, result, doing, what);
    return !result.incomplete;
  };
  auto coming = expect(0);
  for (std::size_t at = 0; at < visits.size(); ++at) {
    const auto [piece, micro_batch] = visits[at];
    auto arriving = std::exchange(coming, expect(at + 1));
    std::optional<task::Values> inputs;
    if (arriving) {
      const bool here = attempt(Doing::talking, [&] { inputs = arriving.wait(); });
      if (!here) inputs = arriving.wait_on_host();
      if (!inputs) result.incomplete = true;
    }
    task::Values outputs;
    const bool whole = attempt(Doing::computing, [&] {
      if (line_.begins(piece)) inputs = work.inputs(micro_batch);
      const ComputeWatch watch(options_.waited);
      outputs = work.forward(piece / line_.stages, micro_batch, *inputs);
      device::pause_for_speed(options_.speed, watch.seconds());
      if (line_.ends(piece)) take(micro_batch, outputs);
    });
    if (line_.ends(piece)) continue;
    const auto next = route.receivers(piece + 1, micro_batch);
    const MessageName name{step, true, piece, micro_batch};
    const bool sent = whole && attempt(Doing::talking, [&] { link_.send(next, name, outputs); });
    if (!sent) link_.send_nothing(next, name);
  }
  link_.flush();
  return result;
}

}  // namespace bimetal::parallel::pipeline
