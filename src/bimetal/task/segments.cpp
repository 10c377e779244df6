#include "bimetal/task/segments.h"

#include <ATen/Context.h>
#include <ATen/autocast_mode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/api/include/torch/types.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <unordered_set>
#include <utility>
#include <vector>

#include "bimetal/base/error.h"
#include "bimetal/task/dropout.h"
#include "bimetal/task/task.h"

namespace bimetal::task {
namespace {

// The state that a forward pass reads beside its inputs, parameters and buffers. It lets a second
// pass repeat the first exactly.

/// This thread's autocast and DrawScope, and torch's default generators of the CPU and of one
/// device, at the time of its making. Those generators are the process's: two threads that draw
/// from them at once get each other's numbers, here as everywhere.
class Surroundings {
 public:
  explicit Surroundings(const torch::Device& device);

  /// Calls `work` with all of it as it was then, and puts back the present state, also when `work`
  /// throws. Autocast keeps no casts from before, nor for later: theirs may be without a gradient.
  void restore_for(const std::function<void()>& work) const;

 private:
  struct Autocast {
    torch::DeviceType device;
    bool enabled = false;
    torch::Dtype dtype;
  };
  struct Generator {
    torch::Device device;
    torch::Tensor state;
  };

  void put_back() const;

  torch::Device device_;
  std::vector<Autocast> autocast_;
  bool autocast_keeps_casts_;
  std::vector<Generator> generators_;
  std::shared_ptr<const Draws> draws_ = current_draws();
};

std::vector<torch::Device> cpu_and(const torch::Device& device) {
  std::vector<torch::Device> devices{torch::kCPU};
  if (!device.is_cpu()) devices.push_back(device);
  return devices;
}

torch::Tensor state_of(const torch::Device& device) {
  auto generator = at::globalContext().defaultGenerator(device);
  const std::scoped_lock lock(generator.mutex());
  return generator.get_state();
}

void set_state(const torch::Device& device, const torch::Tensor& state) {
  auto generator = at::globalContext().defaultGenerator(device);
  const std::scoped_lock lock(generator.mutex());
  generator.set_state(state);
}

Surroundings::Surroundings(const torch::Device& device)
    : device_(device), autocast_keeps_casts_(at::autocast::is_autocast_cache_enabled()) {
  for (const auto& each : cpu_and(device)) {
    generators_.push_back({each, state_of(each)});
    if (!at::autocast::is_autocast_available(each.type())) continue;
    autocast_.push_back({each.type(), at::autocast::is_autocast_enabled(each.type()),
                         at::autocast::get_autocast_dtype(each.type())});
  }
}

void Surroundings::put_back() const {
  for (const auto& [device, state] : generators_) set_state(device, state);
  for (const auto& [device, enabled, dtype] : autocast_) {
    at::autocast::set_autocast_enabled(device, enabled);
    at::autocast::set_autocast_dtype(device, dtype);
  }
  at::autocast::set_autocast_cache_enabled(autocast_keeps_casts_);
  if (std::ranges::any_of(autocast_, &Autocast::enabled)) at::autocast::clear_cache();
}

void Surroundings::restore_for(const std::function<void()>& work) const {
  const Surroundings now(device_);
  struct PutBack {
    const Surroundings& before;
    const Surroundings& during;
    ~PutBack() {
      if (std::ranges::any_of(during.autocast_, &Autocast::enabled)) at::autocast::clear_cache();
      before.put_back();
    }
  } const put_back_at_the_end{now, *this};
  put_back();
  const DrawScope scope(draws_);
  work();
}

using torch::autograd::Node;

std::vector<std::uint32_t> versions_of(const Values& values) {
  std::vector<std::uint32_t> versions;
  for (const auto& value : values) versions.push_back(value._version());
  return versions;
}

/// Casts that are made without gradients must not be found by who needs them with these.
class KeepNoCasts {
 public:
  KeepNoCasts() : before_(at::autocast::is_autocast_cache_enabled()) {
    at::autocast::set_autocast_cache_enabled(false);
  }
  ~KeepNoCasts() { at::autocast::set_autocast_cache_enabled(before_); }
  KeepNoCasts(const KeepNoCasts&) = delete;
  KeepNoCasts& operator=(const KeepNoCasts&) = delete;

 private:
  bool before_;
};

/// Leaves running means and the like as the first pass left them. Until then the graph of the
/// second pass may hold them, too.
class KeptBuffers {
 public:
  explicit KeptBuffers(const Values& buffers) : buffers_(buffers) {
    for (const auto& buffer : buffers_) copies_.push_back(buffer.detach().clone());
  }
  ~KeptBuffers() {
    // Past their versions, which say little: batch normalisation does not count its writes, and
    // here nothing changes for those who hold them.
    for (std::size_t i = 0; i < buffers_.size(); ++i) buffers_[i].variable_data().copy_(copies_[i]);
  }
  KeptBuffers(const KeptBuffers&) = delete;
  KeptBuffers& operator=(const KeptBuffers&) = delete;

 private:
  const Values& buffers_;
  Values copies_;
};

/// Takes the hooks off tensors: they are for the gradient that the outer backward arrives at, and
/// would be called for the inner one's as well.
class HooksOff {
 public:
  explicit HooksOff(const Values& tensors) : tensors_(tensors) { swap(); }
  ~HooksOff() { swap(); }
  HooksOff(const HooksOff&) = delete;
  HooksOff& operator=(const HooksOff&) = delete;

 private:
  void swap() {
    hooks_.resize(tensors_.size());
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      if (!tensors_[i].requires_grad()) continue;
      std::swap(torch::autograd::impl::hooks(tensors_[i]), hooks_[i]);
    }
  }

  const Values& tensors_;
  std::vector<std::vector<std::unique_ptr<torch::autograd::FunctionPreHook>>> hooks_;
};

/// Leaves that the graph of `outputs` adds gradients to.
std::unordered_set<const c10::TensorImpl*> leaves_of(const Values& outputs) {
  std::unordered_set<const c10::TensorImpl*> leaves;
  std::unordered_set<const Node*> seen;
  std::vector<const Node*> ahead;
  for (const auto& output : outputs) {
    if (output.requires_grad())
      ahead.push_back(torch::autograd::impl::gradient_edge(output).function.get());
  }
  while (!ahead.empty()) {
    const auto* const node = ahead.back();
    ahead.pop_back();
    if (!node || !seen.insert(node).second) continue;
    if (const auto* leaf = dynamic_cast<const torch::autograd::AccumulateGrad*>(node)) {
      leaves.insert(leaf->variable.unsafeGetTensorImpl());
    }
    for (const auto& edge : node->next_edges()) ahead.push_back(edge.function.get());
  }
  return leaves;
}

}  // namespace

struct Segments::Group {
  std::size_t first = 0;  ///< place of its first unit in the model
  std::vector<Unit> units;
  BeforeUse before_use;
  Values parameters, buffers;  ///< each once
  /// The units list all that they use: looked at once.
  mutable std::atomic<bool> checked = false;

  Values forward(Values inputs) const {
    return run_units(units, std::move(inputs), before_use, first);
  }
  std::string name() const {
    if (units.size() == 1) return fmt::format("unit '{}'", units.front().name);
    return fmt::format("a unit of '{}' … '{}'", units.front().name, units.back().name);
  }
  void check(const Values& inputs, const Values& outputs) const;
};

// torch::autograd::grad() would leave out such a tensor without a word.
void Segments::Group::check(const Values& inputs, const Values& outputs) const {
  if (checked.exchange(true)) return;
  auto leaves = leaves_of(outputs);
  for (const auto* known : {&inputs, &parameters}) {
    for (const auto& tensor : *known) leaves.erase(tensor.unsafeGetTensorImpl());
  }
  if (leaves.empty()) return;
  throw Error(
      ErrorCode::InvalidArgument,
      fmt::format("{} uses a trained tensor of shape [{}] that is not among its parameters: "
                  "list it there, or set train.recompute = \"none\"",
                  name(), fmt::join((*leaves.begin())->sizes(), ", ")));
}

class Segments::Function : public torch::autograd::Function<Segments::Function> {
 public:
  using Context = torch::autograd::AutogradContext;

  /// `tensors`: the inputs, then the group's parameters, which are handed over only so that
  /// autograd asks for their gradients here.
  static Values forward(Context* context, const std::shared_ptr<const Group>& group,
                        at::TensorList tensors);
  static Values backward(Context* context, const Values& gradients);

 private:
  /// The part of a pass, beside tensors, that its backward needs.
  struct Memory final : torch::CustomClassHolder {
    Memory(std::shared_ptr<const Group> g, const torch::Device& device)
        : group(std::move(g)), surroundings(device) {}
    std::shared_ptr<const Group> group;
    Surroundings surroundings;
  };
};

Values Segments::Function::forward(Context* context, const std::shared_ptr<const Group>& group,
                                   at::TensorList tensors) {
  const auto count = tensors.size() - group->parameters.size();
  const Values inputs(tensors.begin(), tensors.begin() + static_cast<std::ptrdiff_t>(count));
  const auto device = inputs.empty() ? torch::Device(torch::kCPU) : inputs.front().device();
  context->saved_data["memory"] =
      c10::IValue::make_capsule(c10::make_intrusive<Memory>(group, device));
  // Parameters, too: autograd then notices where they change before backward.
  context->save_for_backward(tensors.vec());
  // An output that nobody used must not give zeros to parameters that nobody used.
  context->set_materialize_grads(false);
  const KeepNoCasts keep_no_casts;
  const auto versions = versions_of(inputs);
  auto outputs = group->forward(inputs);
  if (versions_of(inputs) != versions) {
    throw Error(ErrorCode::Unsupported,
                fmt::format("{} changes its inputs in place, so that it cannot be computed again: "
                            "take relu() for relu_() and the like, or train.recompute = \"none\"",
                            group->name()));
  }
  return outputs;
}

Values Segments::Function::backward(Context* context, const Values& gradients) {
  if (torch::GradMode::is_enabled()) {
    throw Error(ErrorCode::Unsupported,
                "derivatives of derivatives cannot be recomputed: set train.recompute = \"none\"");
  }
  const auto saved = context->get_saved_variables();
  const auto memory =
      c10::static_intrusive_pointer_cast<Memory>(context->saved_data["memory"].toCapsule());
  const auto& group = *memory->group;
  const auto count = saved.size() - group.parameters.size();

  Values inputs, wanted;
  std::vector<std::size_t> places;  // in the result, of each wanted one
  for (std::size_t i = 0; i < saved.size(); ++i) {
    const bool needed = context->needs_input_grad(i);
    if (i < count) inputs.push_back(saved[i].detach().set_requires_grad(needed));
    if (!needed) continue;
    wanted.push_back(i < count ? inputs.back() : group.parameters[i - count]);
    places.push_back(i + 1);  // behind the group, which is the first argument
  }

  const KeptBuffers kept(group.buffers);
  Values outputs;
  memory->surroundings.restore_for([&] {
    const torch::AutoGradMode with_gradients(true);
    outputs = group.forward(inputs);
  });
  group.check(inputs, outputs);

  Values used, given;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    if (!gradients[i].defined() || !outputs[i].requires_grad()) continue;
    used.push_back(std::move(outputs[i]));
    given.push_back(gradients[i]);
  }
  Values result(saved.size() + 1);
  if (used.empty() || wanted.empty()) return result;
  const HooksOff hooks_off(group.parameters);
  auto found = torch::autograd::grad(used, wanted, given, /*retain_graph=*/std::nullopt,
                                     /*create_graph=*/false, /*allow_unused=*/true);
  for (std::size_t i = 0; i < found.size(); ++i) result[places[i]] = std::move(found[i]);
  return result;
}

Segments::Segments(const Model& model, std::size_t at_once, BeforeUse before_use) {
  const auto step = at_once == 0 ? std::max<std::size_t>(model.units.size(), 1) : at_once;
  std::size_t first = 0;
  do {
    const auto last = std::min(first + step, model.units.size());
    auto group = std::make_shared<Group>();
    group->first = first;
    group->units.assign(model.units.begin() + static_cast<std::ptrdiff_t>(first),
                        model.units.begin() + static_cast<std::ptrdiff_t>(last));
    group->before_use = before_use;
    const Model part{group->units};
    group->parameters = part.parameters();
    group->buffers = tensors_of(part.named_buffers());
    for (const auto& of_one : part.statistics()) group->buffers.push_back(of_one.sums);
    groups_.push_back(std::move(group));
    first = last;
  } while (first < model.units.size());
}

Values Segments::run(Values inputs) const {
  const bool drops = torch::GradMode::is_enabled();
  for (const auto& group : groups_) {
    if (!drops || group == groups_.back()) {
      inputs = group->forward(std::move(inputs));
      continue;
    }
    inputs.insert(inputs.end(), group->parameters.begin(), group->parameters.end());
    inputs = Function::apply(group, at::TensorList(inputs));
  }
  return inputs;
}

}  // namespace bimetal::task
