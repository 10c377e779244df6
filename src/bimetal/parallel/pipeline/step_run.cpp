#include "bimetal/parallel/pipeline/step_run.h"

#include <torch/csrc/api/include/torch/autograd.h>
#include <torch/csrc/api/include/torch/types.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>

#include "bimetal/base/deadline.h"
#include "bimetal/base/error.h"
#include "bimetal/device/device.h"
#include "bimetal/device/out_of_memory.h"
#include "bimetal/device/stream_timer.h"
#include "bimetal/parallel/pipeline/stage_seconds.h"

namespace bimetal::parallel::pipeline {
namespace {

using schedule::What;

/// Those that gradients flow through.
task::Values differentiable(const task::Values& values) {
  task::Values found;
  for (const auto& value : values) found.push_back(value.requires_grad() ? value : torch::Tensor());
  return found;
}

/// The gradients of leaves, where they are defined.
task::Values gradients_of(const task::Values& leaves) {
  task::Values gradients;
  for (const auto& leaf : leaves) {
    if (!leaf.defined()) {
      gradients.emplace_back();
    } else {
      gradients.push_back(leaf.grad().defined() ? leaf.grad() : torch::zeros_like(leaf));
    }
  }
  return gradients;
}

task::Values defined(const task::Values& values) {
  task::Values found;
  for (const auto& value : values) {
    if (value.defined()) found.push_back(value);
  }
  return found;
}

/// Whether a step goes on without it. While waiting or sending, a step goes on only after a lack of
/// memory: all other errors there are the fabric's, even if they look like a step that others have
/// given up.
bool survives(const StageWork& work, const std::exception_ptr& error, Doing doing) {
  if (doing == Doing::talking && !device::is_out_of_memory(error)) return false;
  return work.survivable && work.survivable(error);
}

}  // namespace

bool done(const StageWork& work, Runner::Result& result, Doing doing,
          const std::function<void()>& what) {
  if (result.incomplete) return false;
  try {
    what();
    return true;
  } catch (...) {
    result.error = std::current_exception();
    if (!survives(work, result.error, doing)) throw;
  }
  return false;
}

StepRun::StepRun(const Route& route, const RunnerOptions& options, Link& link, std::int64_t step,
                 const StageWork& work, ParameterStore& store)
    : route_(route),
      line_(route_.line),
      options_(options),
      link_(link),
      step_(step),
      work_(work),
      store_(store),
      actions_(
          route.deal.actions(options.kind, line_.chunks, line_.stage, route.mesh.own_replica())) {}

Runner::Result StepRun::run() {
  link_.begin_step(store_.loss_factor());
  post_receives();
  store_.expect_passes(passes());
  const auto last = last_backward();
  for (std::size_t i = 0; i < actions_.size(); ++i) act(actions_[i], i == last);
  // To read is to wait. A rank with nothing to read waits by itself.
  if (losses_.empty()) device::synchronize(options_.device);
  for (const auto loss : device::read_together(losses_)) result_.loss_sum += loss;
  const Stopwatch sending;
  link_.flush();
  result_.wait_seconds += sending.seconds();
  return std::move(result_);
}

void StepRun::post_receives() {
  for (const auto& action : actions_) {
    const int piece = line_.piece(action.chunk);
    if (action.what != What::forward || line_.begins(piece)) continue;
    activations_[{action.chunk, action.micro_batch}] = link_.expect(
        route_.peer(piece - 1, action.micro_batch), {step_, true, piece - 1, action.micro_batch});
  }
}

/// The action behind which no gradient of this stage's parameters changes.
std::size_t StepRun::last_backward() const {
  std::size_t last = actions_.size();
  for (std::size_t i = 0; i < actions_.size(); ++i) {
    const auto what = actions_[i].what;
    if (what == What::backward || what == What::backward_weight) last = i;
  }
  return last;
}

/// Passes that give parameters gradients: one of each micro-batch through each chunk.
int StepRun::passes() const {
  return static_cast<int>(std::ranges::count_if(actions_, [](const Action& action) {
    return action.what == What::backward || action.what == What::backward_weight;
  }));
}

void StepRun::act(const Action& action, bool last) {
  switch (action.what) {
    case What::forward: return forward(action);
    case What::backward:
    case What::backward_input: return backward(action, last);
    case What::backward_weight: return backward_weight(action, last);
  }
}

std::optional<task::Values> StepRun::wait_for(const Action& action, Incoming& incoming) {
  const Stopwatch watch;
  std::optional<task::Values> values;
  const auto wait = [&] {
    if (attempt([&] { values = incoming.wait(); })) return;
    values = incoming.wait_on_host();
  };
  if (options_.around_wait) {
    options_.around_wait(action, wait);
  } else {
    wait();
  }
  incoming = {};
  result_.wait_seconds += watch.seconds();
  return values;
}

bool StepRun::try_to(const Action& action, const std::function<void()>& compute) {
  return attempt(
      [&] {
        const ComputeWatch watch(options_.waited);
        const double store_before = store_.wait_seconds();
        if (options_.around) {
          options_.around(action, compute);
        } else {
          compute();
        }
        result_.wait_seconds += watch.waited();  // the store knows its own
        device::pause_for_speed(options_.speed,
                                watch.seconds() - (store_.wait_seconds() - store_before));
      },
      Doing::computing);
}

bool StepRun::attempt(const std::function<void()>& what, Doing doing) {
  if (done(work_, result_, doing, what)) return true;
  give_up();
  return false;
}

void StepRun::give_up() {
  if (std::exchange(result_.incomplete, true)) return;
  // There must be room for later passes, and nobody will use these.
  for (auto& [key, pass] : passes_) {
    pass.outputs.clear();
    pass.loss = torch::Tensor();
    pass.split.reset();
    pass.whole = false;
  }
  if (work_.gave_up) work_.gave_up();
}

void StepRun::forward(const Action& action) {
  auto& pass = passes_[{action.chunk, action.micro_batch}];
  if (line_.begins(line_.piece(action.chunk))) {
    try_to(action, [&] {
      pass.inputs = work_.inputs(action.micro_batch);
      compute_forward(action, pass);
    });
  } else if (auto inputs = wait_for(action, activations_.at({action.chunk, action.micro_batch}))) {
    pass.received = true;
    pass.inputs = std::move(*inputs);
    try_to(action, [&] { compute_forward(action, pass); });
  } else {
    give_up();
  }
  hand_on(action, pass);
}

void StepRun::compute_forward(const Action& action, Pass& pass) {
  pass.outputs = work_.forward(action.chunk, action.micro_batch, pass.inputs);
  if (line_.ends(line_.piece(action.chunk))) {
    pass.loss = work_.loss_sum(action.micro_batch, pass.outputs);
    if (!pass.loss.defined() || pass.loss.numel() != 1) {
      throw Error(ErrorCode::InvalidArgument,
                  "Task::loss_sum must give a single number, the sum over the batch");
    }
    losses_.push_back(pass.loss.detach());
  }
  pass.whole = true;
}

void StepRun::hand_on(const Action& action, Pass& pass) {
  const int piece = line_.piece(action.chunk);
  if (line_.ends(piece)) return;
  const auto next = route_.receivers(piece + 1, action.micro_batch);
  const MessageName name{step_, true, piece, action.micro_batch};
  const bool sent = pass.whole && attempt([&] { link_.send(next, name, pass.outputs); });
  if (!sent) link_.send_nothing(next, name);
  const int back = route_.peer(piece + 1, action.micro_batch);
  const MessageName gradients{step_, false, piece + 1, action.micro_batch};
  if (route_.gradients_described(piece)) {
    pass.gradients = link_.expect(back, gradients);
  } else if (sent) {
    pass.gradients = link_.expect_like(back, gradients, differentiable(pass.outputs));
  }
}

void StepRun::backward(const Action& action, bool last) {
  auto& pass = passes_.at({action.chunk, action.micro_batch});
  if (line_.ends(line_.piece(action.chunk))) {
    if (pass.whole) {
      const auto factor = torch::full_like(pass.loss, store_.loss_factor());
      pass.outputs = {pass.loss};
      pass.whole = try_to(action, [&] {
        compute_backward(pass, {factor}, action.what == What::backward_input, last);
      });
    }
  } else if (pass.gradients) {
    const auto gradients = wait_for(action, pass.gradients);
    if (!gradients) give_up();
    pass.whole = try_to(action, [&] {
      compute_backward(pass, *gradients, action.what == What::backward_input, last);
    });
  }
  hand_back(action, pass);
  if (!pass.split) passes_.erase({action.chunk, action.micro_batch});
}

void StepRun::compute_backward(Pass& pass, const task::Values& gradients, bool split, bool last) {
  auto outputs = defined(differentiable(pass.outputs));
  const auto arrived = defined(gradients);
  pass.outputs.clear();
  pass.loss = torch::Tensor();
  if (outputs.empty()) return;
  if (split && options_.split) {
    pass.split = std::make_unique<SplitBackward>(std::move(outputs), arrived,
                                                 defined(differentiable(pass.inputs)));
    pass.split->of_inputs();
    return;
  }
  store_.run_pass([&] { torch::autograd::backward(outputs, arrived); }, last);
}

void StepRun::hand_back(const Action& action, const Pass& pass) {
  const int piece = line_.piece(action.chunk);
  if (line_.begins(piece)) return;
  const auto before = route_.receivers(piece - 1, action.micro_batch);
  const MessageName name{step_, false, piece, action.micro_batch};
  const bool described = route_.gradients_described(piece - 1);
  const auto inputs = differentiable(pass.inputs);
  const auto send = [&] {
    const auto gradients = gradients_of(inputs);
    if (described) return link_.send(before, name, gradients);
    link_.send_like(before, name, gradients);
  };
  if (pass.received && attempt(send)) return;
  if (described) {
    link_.send_nothing(before, name);
  } else if (pass.received) {
    link_.send_zeros_like(before, name, inputs);
  }
}

void StepRun::backward_weight(const Action& action, bool last) {
  const auto found = passes_.find({action.chunk, action.micro_batch});
  if (found == passes_.end()) {
    // Its backward was whole with the first part. Gradients may leave now, where it was the last.
    if (last && !result_.incomplete) store_.run_pass({}, true);
    return;
  }
  auto& pass = found->second;
  try_to(action, [&] { store_.run_pass([&] { pass.split->of_weights(); }, last); });
  passes_.erase(found);
}

}  // namespace bimetal::parallel::pipeline
