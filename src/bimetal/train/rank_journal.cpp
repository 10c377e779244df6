#include "bimetal/train/rank_journal.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <system_error>
#include <utility>

#include "bimetal/base/error.h"
#include "bimetal/device/out_of_memory.h"
#include "bimetal/progress/worker_summary.h"
#include "bimetal/train/libtorch_state.h"

namespace bimetal::train {
namespace {

std::string policy_name(balance::Policy policy) {
  if (policy == balance::Policy::Auto) return "auto";
  return policy == balance::Policy::Equal ? "equal" : "fixed";
}

}  // namespace

std::vector<double> alone_rates(const balance::Balancer& balancer) {
  std::vector<double> rates;
  for (std::size_t rank = 0; rank < balancer.devices().size(); ++rank) {
    rates.push_back(balancer.alone_rate(static_cast<int>(rank)));
  }
  return rates;
}

RankJournal::RankJournal(const balance::Balancer& balancer, const Lanes& lanes,
                         balance::Policy policy, RunJournal& run, std::vector<int> numbers)
    : balancer_(balancer), lanes_(lanes), run_(run), numbers_(std::move(numbers)) {
  if (numbers_.empty()) {
    numbers_.resize(static_cast<std::size_t>(lanes_.ranks()));
    std::iota(numbers_.begin(), numbers_.end(), 0);
    run_.members.resize(numbers_.size());
  }
  for (std::size_t rank = 0; rank < numbers_.size(); ++rank) before_.push_back(totals_of(rank));
  record_.policy = policy_name(policy);
  record_.global_batch = run_.global_batch;
  for (const auto& device : balancer.devices()) {
    record_.probes.push_back({device.cost.alpha(), device.cost.beta()});
  }
}

/// Nobody has measured a stage's speed alone.
std::vector<double> RankJournal::expected_alone() const {
  return lanes_.shared() ? std::vector<double>(numbers_.size()) : alone_rates(balancer_);
}

void RankJournal::keep_for_replay(std::span<const progress::RankFigures> figures) {
  // Replays take their records by rank.
  record_.complete = !lanes_.shared() && record_.steps.size() < progress::BalanceRecord::kMost;
  if (!record_.complete) return;
  auto& step = record_.steps.emplace_back();
  for (const auto& rank : figures) {
    step.batch.push_back(rank.batch);
    step.compute_s.push_back(rank.compute_seconds);
    step.out_of_memory.push_back(rank.fit == progress::Fit::too_large);
    step.shadow_batch.push_back(rank.shadow.batch);
    step.shadow_s.push_back(rank.shadow.seconds);
  }
}

void RankJournal::add_repeated(const StepResult& result) {
  // Smaller pieces alone are no matter for the balancer.
  const auto too_large = [](const auto& rank) { return rank.fit == progress::Fit::too_large; };
  if (std::ranges::any_of(result.figures, too_large)) keep_for_replay(result.figures);
  run_.journal.add_repeated();
  communicate_seconds_ += result.communicate_seconds;
  wait_seconds_ += result.wait_seconds;
}

progress::Progress RankJournal::add(std::int64_t step, const data::BatchFeed::Plan& plan,
                                    const StepResult& result) {
  keep_for_replay(result.figures);
  communicate_seconds_ += result.communicate_seconds;
  wait_seconds_ += result.wait_seconds;
  const auto alone = expected_alone();
  const auto shares = lanes_.by_rank(balancer_.shares());
  progress::StepDone done{.number = step,
                          .epoch = plan.samples.epoch,
                          .weight = plan.samples.weight(),
                          .shares = std::vector<std::int64_t>(run_.members.size())};
  std::vector<progress::WorkerState> workers;
  for (const auto& member : run_.members) workers.push_back({member.totals, /*here=*/false});
  for (std::size_t rank = 0; rank < numbers_.size(); ++rank) {
    const auto number = static_cast<std::size_t>(numbers_[rank]);
    const auto& figures = result.figures[rank];
    const auto& before = before_[rank];
    auto& totals = totals_of(rank);
    totals.samples += figures.batch;
    totals.compute_s += figures.compute_seconds - figures.sum_seconds;
    totals.communicate_s = before.communicate_s + figures.communicate_seconds;
    totals.wait_s = before.wait_s + figures.wait_seconds;
    totals.bytes_sent = before.bytes_sent + figures.bytes_sent;
    totals.memory_bytes = figures.memory_bytes;
    done.loss_sum += figures.loss_sum;
    done.shares[number] = shares[rank];
    workers[number] = {.totals = totals, .expected_alone = alone[rank]};
  }
  return run_.journal.add(done, workers);
}

progress::Report RankJournal::report(comm::Group group, std::int64_t steps,
                                     std::chrono::milliseconds timeout) const {
  const auto alone = expected_alone();
  progress::WorkerSummary mine;
  mine.elapsed_seconds = run_.journal.elapsed_seconds();
  mine.communicate_seconds = communicate_seconds_;
  mine.wait_seconds = wait_seconds_;
  mine.bytes_sent = group.bytes_sent();
  const auto summaries = progress::gather_summaries(group, mine, timeout);
  double elapsed = 0;
  std::vector<progress::WorkerAtEnd> workers;
  auto gone = run_.members;
  const auto add = [&](int number, const progress::WorkerState& state) {
    auto& member = gone[static_cast<std::size_t>(number)];
    workers.push_back({.number = number, .place = std::move(member.place), .state = state});
  };
  for (std::size_t rank = 0; rank < summaries.size(); ++rank) {
    const auto& summary = summaries[rank];
    const auto& before = before_[rank];
    // Every rank's clock shows nearly the same; the slowest makes the report equal on all.
    elapsed = std::max(elapsed, summary.elapsed_seconds);
    auto totals = totals_of(rank);
    totals.communicate_s = before.communicate_s + summary.communicate_seconds;
    totals.wait_s = before.wait_s + summary.wait_seconds;
    totals.bytes_sent = before.bytes_sent + summary.bytes_sent;
    add(numbers_[rank], {.totals = totals, .expected_alone = alone[rank]});
  }
  for (int number = 0; number < static_cast<int>(gone.size()); ++number) {
    if (std::ranges::find(numbers_, number) != numbers_.end()) continue;
    add(number, {.totals = gone[static_cast<std::size_t>(number)].totals, .here = false});
  }
  auto report = run_.journal.report(steps, workers, elapsed);
  report.world_size = static_cast<int>(summaries.size());
  report.balance = record_;
  return report;
}

namespace {

/// Also for a thread that cannot be started, which may be for lack of memory or of permission.
std::string first_line(const std::exception& exception) {
  if (dynamic_cast<const std::system_error*>(&exception)) return to_error(exception).what();
  const auto* of_torch = dynamic_cast<const c10::Error*>(&exception);
  const std::string text = of_torch ? of_torch->what_without_backtrace() : exception.what();
  return text.substr(0, text.find('\n'));
}

}  // namespace

Error error_of(const std::exception& exception, const std::string& who, std::optional<int> rank) {
  const bool memory = device::is_out_of_memory(std::current_exception());
  const auto refused = nondeterministic_operation(first_line(exception));
  const auto code = memory    ? ErrorCode::OutOfMemory
                    : refused ? ErrorCode::Unsupported
                              : ErrorCode::Internal;
  return Error(code,
               fmt::format("{}{}: {}", who, memory ? " ran out of memory" : "",
                           refused ? *refused : first_line(exception)),
               rank);
}

std::string remedy(const progress::RankFigures& rank, std::int64_t cap) {
  switch (rank.fit) {
    case progress::Fit::try_recomputing: return "it computes activations again for backward";
    case progress::Fit::try_without_graphs: return "it launches its kernels one by one";
    case progress::Fit::try_smaller_pieces: return "it computes them in smaller micro-batches";
    case progress::Fit::too_large: return fmt::format("its share is capped at {}", cap);
    case progress::Fit::fits: break;
  }
  return {};
}

void IdleRanks::tell(const balance::Shares& shares, std::int64_t global_batch,
                     progress::Observer& observer) {
  idle_.resize(shares.size());
  for (std::size_t rank = 0; rank < shares.size(); ++rank) {
    const bool idle = shares[rank] == 0;
    if (idle && !idle_[rank]) {
      observer.on_notice(
          fmt::format("rank {} gets no samples: the others finish a batch of {} sooner without it",
                      rank, global_batch));
    }
    idle_[rank] = idle;
  }
}

}  // namespace bimetal::train
