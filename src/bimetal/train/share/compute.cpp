#include "bimetal/train/share/compute.h"

#include <fmt/format.h>
#include <torch/csrc/api/include/torch/types.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <memory>
#include <new>
#include <span>
#include <utility>

#include "bimetal/base/error.h"
#include "bimetal/base/log.h"
#include "bimetal/device/device.h"
#include "bimetal/device/graph.h"
#include "bimetal/device/out_of_memory.h"
#include "bimetal/device/stream_timer.h"
#include "bimetal/precision/precision.h"
#include "bimetal/train/profile/phase.h"

namespace bimetal::train {

void GraphWatch::saw(const torch::Tensor& loss) {
  if (warned_ || !loss.defined() || !loss.requires_grad()) return;
  kept_ = last_[0].expired() ? 0 : kept_ + 1;
  last_[0] = std::exchange(last_[1], weakly(loss.grad_fn()));
  if (kept_ < kInARow) return;
  warned_ = true;
  log(LogLevel::warning,
      "losses keep their autograd graphs after their steps, so that memory grows from step to "
      "step: whoever adds them up or keeps them takes loss.detach(), or loss.item()");
}

std::size_t recomputed_at_once(const std::string& configured, std::size_t units) {
  if (configured == "none" || configured == "auto") return 0;
  if (configured == "all") return 1;
  if (configured == "sqrt") {
    return static_cast<std::size_t>(std::lround(std::sqrt(static_cast<double>(units))));
  }
  std::size_t number = 0;
  const auto* const end = configured.data() + configured.size();
  const auto [rest, error] = std::from_chars(configured.data(), end, number);
  if (error == std::errc() && rest == end && number > 0) return number;
  throw Error(ErrorCode::InvalidArgument,
              fmt::format("recompute is \"{}\": take \"none\", \"all\", \"sqrt\", \"auto\", or a "
                          "number of units of at least 1",
                          configured));
}

namespace {

constexpr std::int64_t kWholeShare = std::numeric_limits<std::int64_t>::max();

std::int64_t divide_up(std::int64_t a, std::int64_t b) {
  return a / b + (a % b != 0 ? 1 : 0);
}

/// A lack of memory on this rank alone. An Error(OutOfMemory) that ends a step would be taken for
/// one that all ranks have found (trainer.cpp), and the others would be left waiting.
class LackHere : public std::bad_alloc {
 public:
  explicit LackHere(const std::string& what) : what_(std::make_shared<const std::string>(what)) {}
  const char* what() const noexcept override { return what_->c_str(); }

 private:
  std::shared_ptr<const std::string> what_;
};

[[noreturn]] void rethrow_as_own(const std::exception_ptr& lack) {
  try {
    std::rethrow_exception(lack);
  } catch (const Error& error) {
    if (error.rank()) throw;  // of a collective, which fails on all of them
    throw LackHere(error.what());
  }
}

/// A task without data of its own is given its batches; a sample counts once then.
std::int64_t weight_of_a_sample(const task::Task& task) {
  const auto data = task.training();
  return data ? task::typical_weight(*data) : 1;
}

}  // namespace

MicroBatch::MicroBatch(std::int64_t configured, const torch::Device& device,
                       std::int64_t sample_weight, std::int64_t group)
    : group_(group),
      smallest_(whole_groups(std::max<std::int64_t>(1, kSmallest / sample_weight))),
      limit_(whole_groups(configured > 0 ? configured
                          : device.is_cpu()
                              ? std::clamp<std::int64_t>(kCpuWeight / sample_weight, 1, kCpuDefault)
                              : kWholeShare)) {}

/// At most so many samples, but one group at least.
std::int64_t MicroBatch::whole_groups(std::int64_t samples) const {
  return std::max(group_, samples / group_ * group_);
}

std::int64_t least_limit(comm::Group group, const MicroBatch& own, Deadline deadline) {
  std::vector<std::int64_t> least = {own.limit()};
  group.all_reduce(comm::buffer(std::span(least)), comm::ReduceOp::min, deadline).wait();
  return least.front();
}

bool MicroBatch::halve(std::int64_t batch) {
  const auto largest = std::min(limit_, batch);
  if (largest <= smallest_) return false;
  limit_ = std::max(smallest_, whole_groups(largest / 2));
  return true;
}

std::int64_t MicroBatch::pieces(std::int64_t batch, std::int64_t least) const {
  const auto groups = divide_up(batch, group_);
  return std::max(divide_up(groups, limit_ / group_), std::min(least, groups));
}

void MicroBatch::for_each(
    const task::Values& batch, std::int64_t least,
    const std::function<void(const task::Values& piece, bool last)>& compute) const {
  const auto total = task::samples_of(batch);
  const auto count = pieces(total, least);
  const auto groups = divide_up(total, group_);
  std::int64_t begin = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const auto end = std::min(total, groups * (i + 1) / count * group_);
    compute(task::slice(batch, begin, end), i + 1 == count);
    begin = end;
  }
}

void Pieces::add(const torch::Tensor& loss_sum, bool last) {
  if (!loss_sum.defined() || loss_sum.numel() != 1) {
    throw Error(ErrorCode::InvalidArgument,
                "Task::loss_sum must give a single number, the sum over the batch");
  }
  in_phase(Phase::kBackward, [&] { backward_(loss_sum, last); });
  sums_.push_back(loss_sum.detach());
}

double Pieces::loss_sum() const {
  double sum = 0;
  for (const auto loss : device::read_together(sums_)) sum += loss;
  return sum;
}

torch::Tensor Pieces::losses() const {
  std::vector<torch::Tensor> flat;
  for (const auto& loss : sums_) flat.push_back(loss.reshape(1));
  return at::cat(flat);
}

Compute::Compute(const task::Task& task, task::Model model, const torch::Device& device,
                 ComputeOptions options)
    : task_(task),
      model_(std::move(model)),
      device_(device),
      micro_batch_(options.micro_batch, device, weight_of_a_sample(task), model_.sample_group()),
      options_(std::move(options)),
      products_(options_.precision),
      segments_(model_, recomputed_at_once(options_.recompute, model_.units.size()),
                options_.before_use) {
  if (options_.graphs && device::has_graphs(device_)) recorded_.emplace(model_, device_);
}

torch::Tensor Compute::loss_of(const task::Values& piece) const {
  const precision::Autocast cast(device_.type(), options_.precision);
  auto inputs = task_.inputs(piece);
  if (options_.channels_last) inputs = task::in_channels_last(std::move(inputs));
  const auto outputs = segments_.run(std::move(inputs));
  auto loss_sum = task_.loss_sum(outputs, piece);
  // A sum over samples, or its scale, may exceed float16's range.
  const bool low = precision::is_half(options_.precision);
  return low && loss_sum.defined() ? loss_sum.to(torch::kFloat32) : loss_sum;
}

double Compute::run(const task::Values& share, const Backward& backward, const task::Draws& draws,
                    std::int64_t least) {
  return compute(share, backward, draws, least).loss_sum();
}

Pieces Compute::compute(const task::Values& share, const Backward& backward,
                        const task::Draws& draws, std::int64_t least) {
  const precision::CastCache cache;
  Pieces pieces(backward);
  const auto whole =
      draws.samples.empty() ? task::Draws::of_nobody(task::samples_of(share)) : draws;
  std::int64_t begin = 0;
  micro_batch_.for_each(share, least, [&](const task::Values& piece, bool last) {
    const auto end = begin + task::samples_of(piece);
    const task::DrawScope scope(whole.slice(begin, end));
    begin = end;
    const auto computed = [&](const task::Values& values) { return loss_of(values); };
    const auto loss_sum = in_phase(Phase::kForward, [&] {
      return recorded_ ? recorded_->loss(piece, computed) : computed(piece);
    });
    if (last) graphs_.saw(loss_sum);
    pieces.add(loss_sum, last);
  });
  return pieces;
}

Compute::Outcome Compute::try_run(std::int64_t samples, const std::function<task::Values()>& fetch,
                                  const Backward& backward, const task::Draws& draws,
                                  std::int64_t least) {
  bool fetched = false;
  Outcome outcome;
  outcome.error = device::without_memory_for(device_, [&] {
    const auto share = fetch();
    fetched = true;
    if (samples == 0) return;
    const auto pieces = compute(share, backward, draws, least);
    if (options_.waits) {
      outcome.loss_sum = pieces.loss_sum();
    } else {
      outcome.losses = pieces.losses();
    }
  });
  if (!outcome.error) return outcome;
  if (!options_.repeats) rethrow_as_own(outcome.error);
  if (drop_graphs()) {
    outcome.fit = progress::Fit::try_without_graphs;
  } else {
    outcome.fit = fetched ? next_try(samples, least) : progress::Fit::too_large;
  }
  return outcome;
}

/// Smaller pieces cost the device its speed for good, and recomputation a third more work at most.
progress::Fit Compute::next_try(std::int64_t samples, std::int64_t least) {
  if (begin_recomputing()) return progress::Fit::try_recomputing;
  // The pieces that were tried.
  const auto tried = divide_up(samples, std::max<std::int64_t>(1, pieces(samples, least)));
  return micro_batch_.halve(tried) ? progress::Fit::try_smaller_pieces : progress::Fit::too_large;
}

/// For good: with less room they would be in the way again.
bool Compute::drop_graphs() {
  if (!recorded_) return false;
  recorded_.reset();
  device::give_memory_back(device_);
  return true;
}

bool Compute::begin_recomputing() {
  if (options_.recompute != "auto" || segments_.recomputed() > 0) return false;
  segments_ = task::Segments(model_, 1, options_.before_use);
  return segments_.recomputed() > 0;
}

}  // namespace bimetal::train
