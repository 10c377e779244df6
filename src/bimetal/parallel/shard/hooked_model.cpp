#include "bimetal/parallel/shard/hooked_model.h"

#include <fmt/format.h>
#include <torch/csrc/api/include/torch/types.h>
#include <torch/csrc/api/include/torch/utils.h>

#include <algorithm>
#include <utility>

#include "bimetal/base/error.h"
#include "bimetal/c10d/torch_bridge.h"
#include "bimetal/parallel/data/same_model.h"
#include "bimetal/parallel/shard/shard_copies.h"
#include "bimetal/parallel/shard/sharded_model_impl.h"
#include "bimetal/parallel/shard/unit_gathers.h"

namespace bimetal::parallel::shard {

HookedModel::HookedModel(const task::Model& units, comm::Group group, ShardedModelOptions options)
    : sharded_(units, std::move(group), std::move(options)), entered_(units.units.size()) {
  sharded_.impl_->hooked = true;
}

void HookedModel::open() {
  if (open_) return;
  auto& impl = *sharded_.impl_;
  for (auto& piece : impl.pieces) piece.tensor.mutable_grad() = torch::Tensor();
  impl.gradients->begin();
  open_ = true;
}

/// Other ranks go through the rest of it.
void HookedModel::give_up_pass() {
  auto& impl = *sharded_.impl_;
  impl.in_backward = false;
  impl.gradients->set_reducing(false);
  impl.end_pass();
}

void HookedModel::require_current(std::int64_t pass) const {
  const auto& impl = *sharded_.impl_;
  if (!impl.gathers || (pass == pass_ && impl.in_pass)) return;
  if (pass == pass_) {
    throw Error(ErrorCode::Unsupported,
                "a second backward, or torch.autograd.grad, of one forward: at level 3 parameters "
                "are let go when the first ends; take level 2");
  }
  throw Error(ErrorCode::Unsupported,
              "backward of a forward that is not the last one: at level 3 parameters are let go "
              "between passes, so that each forward's backward has to come before the next "
              "forward; put both inputs into one batch, or take level 2");
}

void HookedModel::forward_begins(bool with_backward) {
  auto& impl = *sharded_.impl_;
  if (whole_) {
    throw Error(ErrorCode::InvalidArgument,
                "a forward pass while all parameters are held whole: leave that block first");
  }
  if (!impl.gathers) return;
  give_up_pass();
  if (with_backward) open();
  ++pass_;
  entered_.assign(entered_.size(), false);
  impl.in_step = with_backward;
  impl.begin_pass();
}

void HookedModel::forward_ends() {
  auto& impl = *sharded_.impl_;
  if (impl.gathers && !impl.in_step) impl.end_pass();
}

task::Values HookedModel::enter(std::size_t unit, const task::Values& inputs) {
  auto& impl = *sharded_.impl_;
  if (!impl.in_pass) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("{} is called by itself, but at level 3 its parameters are there only "
                            "within a call of the whole model",
                            impl.model.units[unit].name));
  }
  if (impl.in_backward) {
    impl.gathers->before_backward(unit);
  } else {
    if (entered_[unit]) {
      throw Error(ErrorCode::Unsupported,
                  fmt::format("{} is called twice in one pass: name other units, without it, so "
                              "that its parameters stay",
                              impl.model.units[unit].name));
    }
    entered_[unit] = true;
    impl.gathers->before_forward(unit);
  }
  return at_backward(inputs, [this, unit, pass = pass_] {
    c10d::guarded([&] { require_current(pass); });
    sharded_.impl_->gathers->let_go(unit);
  });
}

task::Values HookedModel::leave(std::size_t unit, const task::Values& outputs) {
  auto& impl = *sharded_.impl_;
  if (!impl.in_backward) impl.gathers->let_go(unit);
  return at_backward(outputs, [this, unit, pass = pass_] {
    c10d::guarded([&] {
      require_current(pass);
      sharded_.impl_->gathers->before_backward(unit);
    });
  });
}

void HookedModel::backward_begins(std::int64_t pass, bool reduce) {
  auto& impl = *sharded_.impl_;
  require_current(pass);
  if (impl.in_backward) return;
  open();
  has_gradients_ = true;
  if (impl.options.level == 1 && !reduce) {
    held_back_ = true;
  } else {
    impl.in_step = true;
    if (!impl.in_pass) impl.begin_pass();
    impl.gradients->set_reducing(true);
    held_back_ = false;
  }
  impl.in_backward = true;
}

void HookedModel::backward_ends() {
  give_up_pass();
}

void HookedModel::finish() {
  auto& impl = *sharded_.impl_;
  give_up_pass();
  open();
  if (std::exchange(held_back_, false)) {
    impl.in_step = true;
    impl.begin_pass();
    impl.end_pass();
  }
  take_part_in_others();
  impl.agree_on_used();
  open_ = has_gradients_ = false;
}

void HookedModel::after_update() {
  sharded_.after_update();
}

void HookedModel::end_passes() {
  give_up_pass();
  if (sharded_.impl_->gathers) take_part_in_others();
}

void HookedModel::take_part_in_others() {
  auto& impl = *sharded_.impl_;
  while (impl.any_rank(false)) {
    if (impl.in_step) open();
    impl.take_part_in_one();
  }
}

std::vector<std::size_t> HookedModel::flats_of(const std::vector<std::string>& names) const {
  const auto& impl = *sharded_.impl_;
  std::vector<std::size_t> found;
  std::size_t known = 0;
  for (std::size_t i = 0; i < impl.plans.size(); ++i) {
    const auto here = std::ranges::count_if(impl.plans[i].slots, [&](const auto& slot) {
      return std::ranges::find(names, impl.trained[slot.parameter].name) != names.end();
    });
    known += static_cast<std::size_t>(here);
    if (here > 0 || names.empty()) found.push_back(i);
  }
  if (known == names.size()) return found;
  throw Error(ErrorCode::InvalidArgument,
              "parameters to be held whole are to be named once each, by the names that they have "
              "in the model");
}

void HookedModel::hold_whole(const std::vector<std::string>& names) {
  auto& impl = *sharded_.impl_;
  if (whole_) {
    throw Error(ErrorCode::InvalidArgument, "parameters are held whole already: leave that block");
  }
  auto flats = flats_of(names);
  give_up_pass();
  whole_ = true;
  held_ = std::move(flats);
  if (!impl.gathers) return;
  for (const auto i : held_) {
    impl.flats[i].take_memory();
    gather_parts(impl.gathering, impl.flats[i].own(), impl.flats[i].whole(), impl.plans[i].counts)
        .begin(Deadline::after(impl.options.timeout))
        .wait();
    impl.flats[i].let_go_of_own();
  }
}

void HookedModel::let_go_of_whole(std::optional<int> root) {
  const torch::NoGradGuard no_grad;
  auto& impl = *sharded_.impl_;
  for (const auto i : held_) {
    auto& flat = impl.flats[i];
    if (root) {
      broadcast_tensors(std::vector{flat.whole()}, *root, impl.group, impl.options.flat_bytes,
                        impl.options.timeout);
    }
    if (!impl.gathers) continue;
    if (root) {
      const auto begin = impl.plans[i].begin_of(impl.group.rank());
      torch::Tensor(flat.own()).copy_(flat.whole().narrow(0, begin, flat.own().numel()));
      flat.let_go_of_own();
    }
    if (!impl.plans[i].resident) flat.drop_memory();
  }
  held_.clear();
  whole_ = false;
}

double HookedModel::wait_seconds() const noexcept {
  return sharded_.wait_seconds();
}

}  // namespace bimetal::parallel::shard
