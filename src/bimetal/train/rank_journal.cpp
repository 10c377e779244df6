#include "bimetal/train/rank_journal.h"

#include <algorithm>

#include "bimetal/progress/worker_summary.h"

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
                         balance::Policy policy, const progress::Journal::Plan& plan)
    : balancer_(balancer),
      lanes_(lanes),
      journal_(plan),
      totals_(static_cast<std::size_t>(lanes.ranks())) {
  record_.policy = policy_name(policy);
  record_.global_batch = plan.global_batch;
  for (const auto& device : balancer.devices()) {
    record_.probes.push_back({device.cost.alpha(), device.cost.beta()});
  }
}

/// Nobody has measured what a stage would do alone.
std::vector<double> RankJournal::expected_alone() const {
  return lanes_.shared() ? std::vector<double>(totals_.size()) : alone_rates(balancer_);
}

void RankJournal::keep_for_replay(std::span<const progress::RankFigures> figures) {
  // What is replayed is told by rank.
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
  journal_.add_repeated();
  communicate_seconds_ += result.communicate_seconds;
  wait_seconds_ += result.wait_seconds;
}

progress::Progress RankJournal::add(std::int64_t step, const data::BatchFeed::Plan& plan,
                                    const StepResult& result) {
  keep_for_replay(result.figures);
  communicate_seconds_ += result.communicate_seconds;
  wait_seconds_ += result.wait_seconds;
  const auto alone = expected_alone();
  progress::StepDone done{.number = step,
                          .epoch = plan.samples.epoch,
                          .weight = plan.samples.weight(),
                          .shares = lanes_.by_rank(balancer_.shares())};
  std::vector<progress::WorkerState> workers;
  for (std::size_t rank = 0; rank < totals_.size(); ++rank) {
    const auto& figures = result.figures[rank];
    auto& totals = totals_[rank];
    totals.samples += figures.batch;
    totals.compute_s += figures.compute_seconds - figures.sum_seconds;
    totals.communicate_s = figures.communicate_seconds;
    totals.wait_s = figures.wait_seconds;
    totals.bytes_sent = figures.bytes_sent;
    done.loss_sum += figures.loss_sum;
    workers.push_back({.totals = totals, .expected_alone = alone[rank]});
  }
  return journal_.add(done, workers);
}

progress::Report RankJournal::report(comm::Group group, std::int64_t steps, const std::string& host,
                                     const std::string& device,
                                     std::chrono::milliseconds timeout) const {
  const auto alone = expected_alone();
  const auto summaries = progress::gather_summaries(group,
                                                    {.host = host,
                                                     .device = device,
                                                     .elapsed_seconds = journal_.elapsed_seconds(),
                                                     .communicate_seconds = communicate_seconds_,
                                                     .wait_seconds = wait_seconds_,
                                                     .bytes_sent = group.bytes_sent()},
                                                    timeout);
  double elapsed = 0;
  std::vector<progress::WorkerAtEnd> workers;
  for (std::size_t rank = 0; rank < summaries.size(); ++rank) {
    const auto& summary = summaries[rank];
    // Every rank's clock shows nearly the same; the slowest makes the report equal on all.
    elapsed = std::max(elapsed, summary.elapsed_seconds);
    auto totals = totals_[rank];
    totals.communicate_s = summary.communicate_seconds;
    totals.wait_s = summary.wait_seconds;
    totals.bytes_sent = summary.bytes_sent;
    workers.push_back({.number = static_cast<int>(rank),
                       .place = {summary.host, summary.device},
                       .state = {.totals = totals, .expected_alone = alone[rank]}});
  }
  auto report = journal_.report(steps, workers, elapsed);
  report.balance = record_;
  return report;
}

}  // namespace bimetal::train
