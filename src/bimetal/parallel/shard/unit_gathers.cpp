#include "bimetal/parallel/shard/unit_gathers.h"

#include <fmt/format.h>
#include <torch/csrc/api/include/torch/autograd.h>
#include <torch/csrc/api/include/torch/types.h>
#include <torch/csrc/api/include/torch/utils.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <memory>
#include <span>
#include <utility>

#include "bimetal/base/deadline.h"
#include "bimetal/parallel/parameter_store.h"

namespace bimetal::parallel::shard {
namespace {

struct Boundary final : torch::CustomClassHolder {
  explicit Boundary(std::function<void()> called) : call(std::move(called)) {}
  std::function<void()> call;
};

/// Identity; its backward calls the boundary.
class Fence : public torch::autograd::Function<Fence> {
 public:
  using Context = torch::autograd::AutogradContext;

  static task::Values forward(Context* context, const c10::intrusive_ptr<Boundary>& boundary,
                              at::TensorList values) {
    context->saved_data["boundary"] = c10::IValue::make_capsule(boundary);
    context->set_materialize_grads(false);
    task::Values same;
    for (const auto& value : values) same.push_back(value.view_as(value));
    return same;
  }

  static task::Values backward(Context* context, const task::Values& gradients) {
    c10::static_intrusive_pointer_cast<Boundary>(context->saved_data["boundary"].toCapsule())
        ->call();
    task::Values all = {torch::Tensor()};  // of the boundary
    all.insert(all.end(), gradients.begin(), gradients.end());
    return all;
  }
};

task::Values pass(const c10::intrusive_ptr<Boundary>& boundary, const task::Values& values) {
  if (values.empty() || !torch::GradMode::is_enabled()) return values;
  return Fence::apply(boundary, at::TensorList(values));
}

}  // namespace

task::Values at_backward(const task::Values& values, std::function<void()> call) {
  return pass(c10::make_intrusive<Boundary>(std::move(call)), values);
}

task::Unit fence(task::Unit unit, UnitBoundaries boundaries) {
  const auto in = c10::make_intrusive<Boundary>(std::move(boundaries.after_backward));
  const auto out = c10::make_intrusive<Boundary>(std::move(boundaries.before_backward));
  unit.forward = [forward = std::move(unit.forward), in, out,
                  before = std::move(boundaries.before_forward),
                  after = std::move(boundaries.after_forward)](const task::Values& inputs) {
    before();
    auto outputs = pass(out, forward(pass(in, inputs)));
    after();
    return outputs;
  };
  return unit;
}

UnitGathers::UnitGathers(std::vector<std::vector<std::size_t>> needs,
                         const std::vector<FlatPlan>& plans, std::vector<FlatParameters>& flats,
                         Peers peers, ExchangeSpan& span, std::chrono::milliseconds timeout)
    : needs_(std::move(needs)),
      plans_(plans),
      flats_(flats),
      peers_(std::move(peers)),
      span_(span),
      timeout_(timeout) {
  plan_script();
  drop_all();
}

void UnitGathers::drop_all() {
  for (std::size_t i = 0; i < flats_.size(); ++i) {
    if (!plans_[i].resident) flats_[i].drop_memory();
  }
}

void UnitGathers::plan_script() {
  kept_.resize(plans_.size());
  for (std::size_t i = 0; i < plans_.size(); ++i) kept_[i] = plans_[i].shared || plans_[i].resident;
  // The tensors that backward begins with have just been used.
  const auto has_own = [&](const std::vector<std::size_t>& needs) {
    return std::ranges::any_of(
        needs, [&](std::size_t flat) { return !plans_[flat].shared && !plans_[flat].resident; });
  };
  const auto last = std::find_if(needs_.rbegin(), needs_.rend(), has_own);
  if (last != needs_.rend()) {
    for (const auto flat : *last) kept_[flat] = true;
  }
  std::vector<bool> gathered(plans_.size());
  for (std::size_t i = 0; i < plans_.size(); ++i) gathered[i] = plans_[i].resident;
  const auto add = [&](std::size_t unit, std::vector<std::size_t>& ends) {
    for (const auto flat : needs_[unit]) {
      if (!gathered[flat]) script_.push_back(flat);
      gathered[flat] = true;
    }
    ends[unit] = script_.size();
  };
  forward_ends_.resize(needs_.size());
  backward_ends_.resize(needs_.size());
  for (std::size_t unit = 0; unit < needs_.size(); ++unit) add(unit, forward_ends_);
  forward_size_ = script_.size();
  gathered = kept_;
  for (std::size_t unit = needs_.size(); unit-- > 0;) add(unit, backward_ends_);
}

void UnitGathers::begin_pass(bool with_backward) {
  begin(!with_backward, with_backward ? script_.size() : forward_size_);
}

void UnitGathers::begin_holding(bool wide) {
  begin(wide, forward_size_);
  holding_ = true;
  while (sent_ < size_) send_next();
}

void UnitGathers::begin(bool wide, std::size_t size) {
  in_pass_ = true;
  for (auto& flat : flats_) flat.set_wide(wide);
  size_ = size;
  sent_ = arrived_ = 0;
  exchanges_.clear();
  exchanges_.resize(script_.size());
}

void UnitGathers::end_pass(const std::function<void(std::size_t flat)>& passed) {
  if (!in_pass_) return;
  while (arrived_ < size_) {
    if (sent_ == arrived_) send_next();
    const bool back = arrived_ >= forward_size_;
    const auto flat = script_[arrived_];
    wait_next();
    if (back && passed) passed(flat);
    if (!kept_[flat]) flats_[flat].drop_memory();
  }
  drop_all();
  in_pass_ = holding_ = false;
}

void UnitGathers::let_go(std::size_t unit) {
  for (const auto flat : needs_[unit]) {
    if (!kept_[flat] && !on_its_way(flat)) flats_[flat].drop_memory();
  }
}

/// If units run in another order than theirs, backward's gather may have begun already.
bool UnitGathers::on_its_way(std::size_t flat) const {
  const auto sent = std::span(script_).subspan(arrived_, sent_ - arrived_);
  return std::ranges::find(sent, flat) != sent.end();
}

/// The one after it is sent for, too, so that it arrives while this one is used.
void UnitGathers::reach(std::size_t end) {
  while (sent_ < std::min(end + 1, size_)) send_next();
  while (arrived_ < end) wait_next();
}

void UnitGathers::send_next() {
  const auto flat = script_[sent_];
  const auto whole = flats_[flat].take_memory_to_come();
  wait_for_disk(flat);
  exchanges_[sent_] = gather_parts(peers_, flats_[flat].own(), whole, plans_[flat].counts);
  exchanges_[sent_].begin(Deadline::after(timeout_));
  span_.watch(exchanges_[sent_].work());
  ++sent_;
  if (sent_ < size_) flats_[script_[sent_]].bring_own();
}

void UnitGathers::wait_for_disk(std::size_t flat) {
  if (!flats_[flat].own_on_disk()) return;
  marked_wait(
      disk_wait_seconds_,
      [&] { return fmt::format("the disk, parameters of unit {}", plans_[flat].unit); },
      [&] { flats_[flat].wait_for_own(); });
}

void UnitGathers::wait_next() {
  const auto next = script_[arrived_];
  marked_wait(
      span_.waited, [&] { return fmt::format("parameters of unit {}", plans_[next].unit); },
      [&] { exchanges_[arrived_].wait(); });
  auto& flat = flats_[next];
  flat.memory_has_come();
  flat.let_go_of_own();
  // For long: two of the same would be too many.
  if (holding_) flat.keep_in_whole();
  ++arrived_;
}

WholeRenewal::WholeRenewal(std::vector<Flat> renewed, const std::vector<FlatPlan>& plans,
                           std::vector<FlatParameters>& flats, Peers peers, ExchangeSpan& span,
                           std::chrono::milliseconds timeout)
    : renewed_(std::move(renewed)),
      plans_(plans),
      flats_(flats),
      peers_(std::move(peers)),
      span_(span),
      timeout_(timeout) {
  expect_anew();
}

void WholeRenewal::expect_anew() {
  exchanges_.clear();
  begun_ = 0;
  left_.assign(plans_.size(), 0);
  for (const auto& flat : renewed_) left_[flat.index] = flat.pieces;
}

void WholeRenewal::updated(std::size_t index) {
  if (left_[index] > 0) --left_[index];
  while (exchanges_.size() < renewed_.size() && left_[renewed_[exchanges_.size()].index] == 0) {
    send_next(flats_[renewed_[exchanges_.size()].index].is_copied_to_bfloat16());
  }
}

/// `copied`: the whole already has this rank's part, in the whole's type.
void WholeRenewal::send_next(bool copied) {
  const torch::NoGradGuard no_grad;
  const auto index = renewed_[exchanges_.size()].index;
  auto& flat = flats_[index];
  flat.take_memory();
  exchanges_.push_back(gather_parts(peers_, copied ? flat.own_in_whole() : flat.own(), flat.whole(),
                                    plans_[index].counts));
  begin_copied();
}

/// Those before the first whose part is still on its way to the host.
void WholeRenewal::begin_copied() {
  while (begun_ < exchanges_.size() && exchanges_[begun_].copied()) {
    exchanges_[begun_++].begin(Deadline::after(timeout_));
  }
}

void WholeRenewal::complete() {
  // Some of their pieces were not told of: they were loaded, or had no gradient.
  while (exchanges_.size() < renewed_.size()) send_next(/*copied=*/false);
  while (begun_ < exchanges_.size()) exchanges_[begun_++].begin(Deadline::after(timeout_));
  for (std::size_t i = 0; i < exchanges_.size(); ++i) {
    marked_wait(
        span_.waited,
        [&] {
          return fmt::format("updated parameters of unit {}", plans_[renewed_[i].index].unit);
        },
        [&] { exchanges_[i].wait(); });
  }
  expect_anew();
}

}  // namespace bimetal::parallel::shard
