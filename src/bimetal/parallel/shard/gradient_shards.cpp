#include "bimetal/parallel/shard/gradient_shards.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/api/include/torch/types.h>
#include <torch/csrc/api/include/torch/utils.h>

#include <algorithm>
#include <span>
#include <thread>
#include <utility>

#include "bimetal/base/error.h"
#include "bimetal/parallel/parameter_store.h"

namespace bimetal::parallel::shard {
namespace {

/// How often a waiting thread checks whether a device has ended another copy.
constexpr std::chrono::microseconds kLook{50};

/// The size of the memory in which ranks of a host see each other's flat tensors. It has room for
/// the largest one, or for the one being filled and two under way. It is never given back. A tensor
/// without a place in it is summed all the same.
std::size_t room_for(const std::vector<FlatPlan>& plans) {
  constexpr std::size_t kAtOnce = 3;
  std::size_t most = 0;
  std::deque<std::size_t> last;
  for (const auto& plan : plans) {
    const std::size_t bytes = static_cast<std::size_t>(plan.count) * c10::elementSize(plan.dtype);
    most = std::max(most, GroupRoom::bytes_for({{bytes}}));
    if (plan.shared) continue;
    last.push_back(bytes);
    if (last.size() > kAtOnce) last.pop_front();
    most = std::max(most, GroupRoom::bytes_for(std::vector(last.begin(), last.end())));
  }
  return most;
}

}  // namespace

GradientShards::GradientShards(std::vector<torch::Tensor> parameters,
                               const std::vector<FlatPlan>& plans, Peers peers, ExchangeSpan& span,
                               std::chrono::milliseconds timeout,
                               std::chrono::milliseconds patience, std::size_t most)
    : parameters_(std::move(parameters)),
      plans_(plans),
      peers_(std::move(peers)),
      span_(span),
      timeout_(timeout),
      patience_(patience),
      most_(most),
      late_(static_cast<std::size_t>(std::ranges::count(plans, true, &FlatPlan::late))),
      room_(peers_.group, room_for(plans), parameters_.empty() || parameters_.front().is_cpu()),
      sums_(plans.size()),
      summed_(plans.size()),
      used_(parameters_.size()),
      filling_(
          parameters_, parameters_of(plans),
          [this](std::size_t flat, std::size_t slot) { take(flat, slot); },
          [this](std::size_t) { send_ready(); }, late_) {
  expect_anew();
}

void GradientShards::begin() {
  for (auto& parameter : parameters_) parameter.mutable_grad() = torch::Tensor();
  for (auto& sum : sums_) sum = torch::Tensor();
  summed_.assign(plans_.size(), false);
  used_.assign(parameters_.size(), false);
  take_ = nullptr;
  expect_anew();
}

void GradientShards::expect_anew() {
  filling_.expect_anew();
  memory_.assign(plans_.size(), {});
  left_ = plans_.size();
}

void GradientShards::complete(const std::function<void()>& when_sent) {
  fill_from(0);
  arrive_all(when_sent);
}

void GradientShards::end_pass() {
  complete_from(late_);
  expect_anew();
}

void GradientShards::end_others(int count) {
  const auto before = std::exchange(patience_, timeout_);
  for (; count > 0; --count) end_pass();
  patience_ = before;
}

void GradientShards::complete_late() {
  left_ = late_;
  fill_from(0);
  arrive_all();
}

void GradientShards::arrive_all(const std::function<void()>& when_sent) {
  auto then = when_sent;
  for (;;) {
    begin_copied();
    if (begun_ == 0 && !in_flight_.empty()) begin_next();
    if (then && begun_ == in_flight_.size()) std::exchange(then, {})();
    if (in_flight_.empty()) break;
    arrive();
  }
  expect_anew();
}

/// Sending a full one takes it off the rest.
void GradientShards::fill_from(std::size_t first) {
  for (std::size_t flat = left_; flat-- > first;) filling_.complete(flat);
}

/// Others wait for this rank's gradients, and it may not come here again for a while.
void GradientShards::complete_from(std::size_t first) {
  fill_from(first);
  while (begun_ < in_flight_.size()) begin_next();
}

void GradientShards::take(std::size_t flat, std::size_t slot) {
  const torch::NoGradGuard no_grad;
  const auto& plan = plans_[flat];
  const auto parameter = plan.slots[slot].parameter;
  auto& tensor = parameters_[parameter];
  if (!memory_[flat].defined()) {
    take_arrived();
    memory_[flat] =
        tensor.is_cpu()
            ? room_.take(plan.count, plan.dtype)
            : torch::empty({plan.count}, torch::dtype(plan.dtype).device(tensor.device()));
  }
  const auto view =
      memory_[flat].narrow(0, plan.slots[slot].offset, plan.slots[slot].count).view(tensor.sizes());
  auto& gradient = tensor.mutable_grad();
  if (!gradient.defined()) {
    view.zero_();
    return;
  }
  view.copy_(gradient.is_sparse() ? gradient.to_dense() : gradient);
  gradient = torch::Tensor();
  used_[parameter] = true;
}

void GradientShards::send_ready() {
  begin_copied();
  const auto rank = peers_.group.rank();
  while (left_ > 0 && filling_.full(left_ - 1)) {
    const auto index = --left_;
    const auto& plan = plans_[index];
    auto memory = std::exchange(memory_[index], {});
    const auto count = static_cast<std::int64_t>(plan.counts[static_cast<std::size_t>(rank)]);
    make_room();
    const bool first = !summed_[index];
    summed_[index] = true;
    // The sum over one rank is its own values.
    const bool apart = first && peers_.group.size() > 1;
    auto own = apart ? torch::empty({count}, memory.options())
                     : memory.narrow(0, plan.begin_of(rank), count);
    auto exchange = reduce_parts(peers_, memory, own, plan.counts);
    auto& sent = in_flight_.emplace_back(InFlight{
        index, std::move(memory), std::move(own), first, std::move(exchange), nullptr, {}});
    if (take_) {
      sent.used = std::make_shared<std::vector<std::int32_t>>();
      for (const auto& slot : plan.slots) sent.used->push_back(used_[slot.parameter]);
    }
    begin_copied();
  }
}

/// Those before the first that is still on its way to the host.
void GradientShards::begin_copied() {
  while (begun_ < in_flight_.size() && in_flight_[begun_].exchange.copied()) begin_next();
}

/// Waits for its way to the host.
void GradientShards::begin_next() {
  auto& next = in_flight_[begun_++];
  const auto begin = [&] { next.exchange.begin(Deadline::after(timeout_)); };
  if (next.exchange.copied()) {
    begin();
  } else {
    marked_wait(
        span_.waited, [&] { return name_of(next); }, begin);
  }
  span_.watch(next.exchange.work());
  if (!next.used) return;
  // Others may have had gradients where this rank has none. Behind the sum, so that it is not
  // waited for here.
  next.agreement = peers_.group.all_reduce(comm::buffer(std::span(*next.used)), comm::ReduceOp::max,
                                           Deadline::after(timeout_));
  // A thread that unwinds in the middle of a step leaves it under way.
  next.agreement.on_done([kept = next.used](const std::exception_ptr&) {});
}

/// Begins others meanwhile, as their copies end.
bool GradientShards::oldest_arrives_by(Deadline deadline) {
  for (;;) {
    begin_copied();
    const auto& oldest = in_flight_.front().exchange;
    if (begun_ == in_flight_.size()) return oldest.arrives_by(deadline);
    const auto look = Deadline::after(kLook);
    if (begun_ == 0) {
      std::this_thread::sleep_until(look.time());
    } else if (oldest.arrives_by(look)) {
      return true;
    }
    if (deadline.expired()) return false;
  }
}

std::string GradientShards::name_of(const InFlight& sum) const {
  return fmt::format("gradients of unit {}", plans_[sum.flat].unit);
}

/// Their memory is free for the next ones.
void GradientShards::take_arrived() {
  while (begun_ > 0 && in_flight_.front().exchange.work().done()) arrive();
}

void GradientShards::make_room() {
  while (in_flight_.size() >= most_) {
    const auto& oldest = in_flight_.front();
    const bool arrived = marked_wait(
        span_.waited, [&] { return name_of(oldest); },
        [&] { return oldest_arrives_by(Deadline::after(patience_)); });
    if (!arrived) return;
    arrive();
  }
}

/// The oldest sum, which has begun: its memory is freed as soon as this rank's part is taken out of
/// it.
void GradientShards::arrive() {
  auto oldest = std::move(in_flight_.front());
  in_flight_.pop_front();
  --begun_;
  marked_wait(
      span_.waited, [&] { return name_of(oldest); },
      [&] {
        oldest.exchange.wait();
        oldest.agreement.wait();
      });
  const torch::NoGradGuard no_grad;
  auto& sum = sums_[oldest.flat];
  if (oldest.first) {
    sum = std::move(oldest.own);
  } else {
    sum.add_(oldest.own);
  }
  if (oldest.used) give_away(oldest);
}

/// The sum's memory goes with it.
void GradientShards::give_away(InFlight& arrived) {
  arrived.memory = arrived.own = torch::Tensor();
  const auto& slots = plans_[arrived.flat].slots;
  for (std::size_t slot = 0; slot < slots.size(); ++slot) {
    used_[slots[slot].parameter] = (*arrived.used)[slot] != 0;
  }
  const auto sum = std::exchange(sums_[arrived.flat], {});
  take_(arrived.flat, sum);
}

}  // namespace bimetal::parallel::shard
