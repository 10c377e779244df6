#include "bimetal/train/share/recorded_passes.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <torch/csrc/api/include/torch/types.h>
#include <torch/csrc/api/include/torch/utils.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <exception>
#include <string>
#include <utility>

#include "bimetal/base/error.h"
#include "bimetal/c10d/torch_bridge.h"
#include "bimetal/device/device.h"
#include "bimetal/device/out_of_memory.h"
#include "bimetal/precision/precision.h"
#include "bimetal/task/dropout.h"
#include "bimetal/task/task.h"
#include "bimetal/train/share/compute.h"

namespace bimetal::train {
namespace {

using Tensors = std::vector<torch::Tensor>;

constexpr std::size_t kMostSeen = 64;

/// What a graph depends on beside numbers: types, sizes and strides.
std::vector<std::int64_t> shape_of(const task::Values& piece) {
  std::vector<std::int64_t> shape;
  for (const auto& tensor : piece) {
    shape.push_back(static_cast<std::int64_t>(tensor.scalar_type()));
    shape.push_back(tensor.dim());
    shape.insert(shape.end(), tensor.sizes().begin(), tensor.sizes().end());
    shape.insert(shape.end(), tensor.strides().begin(), tensor.strides().end());
  }
  return shape;
}

Tensors all_of(const task::Model& model) {
  auto all = model.parameters();
  for (const auto& buffer : task::tensors_of(model.named_buffers())) all.push_back(buffer);
  for (const auto& of_one : model.statistics()) all.push_back(of_one.sums);
  return all;
}

/// While it lives, the graph of a forward pass gets nodes of its own that add to parameters'
/// gradients. Those that somebody keeps, to be told of gradients, belong to the stream in which
/// they were made, and backward would leave the one that is recorded.
class OwnAccumulators {
 public:
  explicit OwnAccumulators(const Tensors& parameters) : parameters_(parameters) {
    for (const auto& parameter : parameters_) {
      before_.push_back(torch::autograd::impl::try_get_grad_accumulator(parameter));
      torch::autograd::impl::set_grad_accumulator(parameter, weakly(Kept()));
    }
  }
  ~OwnAccumulators() {
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      torch::autograd::impl::set_grad_accumulator(parameters_[i], weakly(before_[i]));
    }
  }
  OwnAccumulators(const OwnAccumulators&) = delete;
  OwnAccumulators& operator=(const OwnAccumulators&) = delete;

 private:
  using Kept = decltype(torch::autograd::Edge::function);

  const Tensors& parameters_;
  std::vector<Kept> before_;
};

/// While it lives, parameters have other gradients.
class OtherGradients {
 public:
  OtherGradients(Tensors& parameters, const Tensors& gradients) : parameters_(parameters) {
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      before_.push_back(std::exchange(parameters_[i].mutable_grad(), gradients[i]));
    }
  }
  ~OtherGradients() {
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      parameters_[i].mutable_grad() = before_[i];
    }
  }
  OtherGradients(const OtherGradients&) = delete;
  OtherGradients& operator=(const OtherGradients&) = delete;

 private:
  Tensors& parameters_;
  Tensors before_;
};

[[noreturn]] void cannot(const torch::Device& device, const std::string& why) {
  throw Error(
      ErrorCode::Unsupported,
      fmt::format("train.graphs: a step cannot be a graph of {}, since {}; set train.graphs "
                  "= false",
                  device.str(), why));
}

}  // namespace

/// What all passes have in common.
struct RecordedPasses::Home {
  Home(const task::Model& model, const torch::Device& where)
      : device(where), tensors(all_of(model)), anchor(torch::ones({}).requires_grad_()) {
    for (const auto& parameter : model.parameters()) {
      if (parameter.requires_grad()) trained.push_back(parameter);
    }
    const torch::NoGradGuard no_grad;
    for (const auto& parameter : trained) gradients.push_back(torch::empty_like(parameter));
  }

  std::vector<const void*> places() const {
    std::vector<const void*> all;
    for (const auto& tensor : tensors) all.push_back(tensor.const_data_ptr());
    return all;
  }

  torch::Device device;
  Tensors tensors;
  Tensors trained, gradients;  ///< of each parameter that is trained, where passes add to it
  torch::Tensor anchor;        ///< for autograd to have something that wants a gradient
};

struct RecordedPasses::Pass {
  void run_forward(const task::Values& piece) const {
    for (std::size_t i = 0; i < inputs.size(); ++i) inputs[i].copy_(piece[i]);
    forward->replay();
  }

  /// The gradients of a step begin as undefined, or as what an earlier piece has left elsewhere.
  void run_backward(const torch::Tensor& of_loss) const {
    Tensors begin;
    for (const auto i : used) {
      auto& gradient = home->trained[i].mutable_grad();
      const auto& there = home->gradients[i];
      if (gradient.is_same(there)) continue;
      if (gradient.defined()) {
        there.copy_(gradient);
      } else {
        begin.push_back(there);
      }
      gradient = there;
    }
    if (!begin.empty()) at::_foreach_zero_(begin);
    seed.copy_(of_loss);
    backward->replay();
  }

  std::shared_ptr<Home> home;
  std::vector<std::int64_t> shape;
  std::vector<const void*> places;  ///< of the model's tensors
  task::Values inputs;
  torch::Tensor loss, seed;       ///< what forward leaves, what backward begins with
  std::vector<std::size_t> used;  ///< of home->trained
  std::unique_ptr<device::Graph> forward, backward;
};

class RecordedPasses::Replay : public torch::autograd::Function<Replay> {
 public:
  using Context = torch::autograd::AutogradContext;

  static torch::Tensor forward(Context* context, const std::shared_ptr<Pass>& pass,
                               const task::Values& piece, const torch::Tensor& /*anchor*/) {
    pass->run_forward(piece);
    context->saved_data["pass"] = c10::IValue::make_capsule(c10::make_intrusive<Kept>(pass));
    return pass->loss.clone();
  }

  static Tensors backward(Context* context, const Tensors& gradients) {
    const auto kept =
        c10::static_intrusive_pointer_cast<Kept>(context->saved_data["pass"].toCapsule());
    kept->pass->run_backward(gradients.front());
    return {{}, {}, {}};
  }

 private:
  struct Kept final : torch::CustomClassHolder {
    explicit Kept(std::shared_ptr<Pass> p) : pass(std::move(p)) {}
    std::shared_ptr<Pass> pass;
  };
};

RecordedPasses::RecordedPasses(const task::Model& model, const torch::Device& device)
    : home_(std::make_shared<Home>(model, device)), recorder_(device) {}

RecordedPasses::~RecordedPasses() = default;

torch::Tensor RecordedPasses::loss(const task::Values& piece, const LossOf& loss_of) {
  auto pass = find(piece);
  if (!pass && !seen(piece)) {
    const auto before = task::draws_made();
    auto loss = loss_of(piece);
    if (task::draws_made() != before) {
      cannot(home_->device,
             "the model draws at random for each sample (dropout), and would draw "
             "the same in each step");
    }
    return loss;
  }
  if (!pass) pass = record(piece, loss_of);
  return Replay::apply(pass, piece, home_->anchor);
}

/// One whose tensors are still where they were.
std::shared_ptr<RecordedPasses::Pass> RecordedPasses::find(const task::Values& piece) {
  const auto shape = shape_of(piece);
  const auto found =
      std::ranges::find_if(passes_, [&](const auto& pass) { return pass->shape == shape; });
  if (found == passes_.end()) return nullptr;
  if ((*found)->places != home_->places()) {
    passes_.clear();
    recorder_.forget_memory();
    return nullptr;
  }
  std::rotate(passes_.begin(), found, found + 1);
  return passes_.front();
}

/// Whether it has come before; it has from now on.
bool RecordedPasses::seen(const task::Values& piece) {
  auto shape = shape_of(piece);
  const auto found = std::ranges::find(seen_, shape);
  if (found != seen_.end()) {
    std::rotate(seen_.begin(), found, found + 1);
    return true;
  }
  seen_.insert(seen_.begin(), std::move(shape));
  if (seen_.size() > kMostSeen) seen_.pop_back();
  return false;
}

std::shared_ptr<RecordedPasses::Pass> RecordedPasses::record(const task::Values& piece,
                                                             const LossOf& loss_of) {
  // What earlier steps have freed cannot be given back while a graph is recorded, and would be
  // missing then.
  device::synchronize(home_->device);
  if (passes_.size() == kMost) passes_.pop_back();
  device::give_memory_back(home_->device);
  auto pass = std::make_shared<Pass>();
  pass->home = home_;
  pass->shape = shape_of(piece);
  pass->places = home_->places();
  for (const auto& tensor : piece) pass->inputs.push_back(tensor.clone());
  std::vector<std::uint32_t> versions;
  for (const auto& gradient : home_->gradients) versions.push_back(gradient._version());
  { const precision::CastCache of_earlier_pieces; }  // which go, and are read by no graph
  try {
    const precision::CastCache own;
    const OwnAccumulators accumulators(home_->trained);
    const OtherGradients there(home_->trained, home_->gradients);
    torch::Tensor loss;
    pass->forward = recorder_.record([&] { loss = loss_of(pass->inputs); });
    pass->loss = loss.detach();
    pass->seed = torch::empty_like(pass->loss);
    pass->backward = recorder_.record([&] { loss.backward(pass->seed); });
  } catch (const c10::Error& error) {
    if (device::is_out_of_memory(std::current_exception())) throw;
    cannot(home_->device, c10d::first_line(error));
  }
  for (std::size_t i = 0; i < versions.size(); ++i) {
    if (home_->gradients[i]._version() != versions[i]) pass->used.push_back(i);
  }
  passes_.insert(passes_.begin(), pass);
  return pass;
}

}  // namespace bimetal::train
