#include <fmt/format.h>
#include <signal.h>

#include <algorithm>
#include <vector>

#include "bimetal/launch/local/local_launcher.h"
#include "bimetal/launch/local/process.h"

namespace bimetal::launch {
namespace {

constexpr int kEndedWithoutAWord = 0, kOwnError = 1;

/// How far an outcome is from the cause; see the header for the order.
int distance(const RankOutcome& outcome) {
  if (!outcome.error) return kEndedWithoutAWord;
  switch (outcome.error->code()) {
    case ErrorCode::Timeout: return 2;
    case ErrorCode::PeerLost: return 3;
    case ErrorCode::Aborted: return 4;
    default: return kOwnError;
  }
}

bool ended_well(const ProcessExit& exit) {
  return exit.signal == 0 && (exit.status == 0 || exit.status == kInterruptedStatus);
}

bool failed(const RankOutcome& outcome, bool interrupted) {
  if (outcome.killed_by_us) return false;
  if (!interrupted) return outcome.error || !ended_well(outcome.exit);
  // After a Ctrl-C ranks leave one by one, and may miss each other; only a failure of the requested
  // work counts, such as writing a checkpoint.
  const int signal = outcome.exit.signal;
  if (outcome.error) return distance(outcome) <= kOwnError;
  return signal != 0 && signal != SIGINT && signal != SIGTERM;
}

std::string describe(const RankOutcome& outcome) {
  return fmt::format("rank {} ({}, pid {})", outcome.rank, outcome.name, outcome.pid);
}

}  // namespace

Error error_of(const RankOutcome& outcome, int world_size) {
  const char* others = world_size > 1 ? "; the other ranks were stopped" : "";
  if (outcome.error) {
    return {outcome.error->code(), fmt::format("{}: {}", describe(outcome), outcome.error->what()),
            outcome.error->rank()};
  }
  if (const int signal = outcome.exit.signal; signal != 0) {
    const char* hint =
        signal == kKillSignal ? ". (The system does this too when memory runs out.)" : "";
    return {ErrorCode::PeerLost,
            fmt::format("{} {}{}{}", describe(outcome), how_it_ended(outcome.exit), others, hint),
            outcome.rank};
  }
  return {ErrorCode::PeerLost,
          fmt::format("{} {} and gave no reason{}", describe(outcome), how_it_ended(outcome.exit),
                      others),
          outcome.rank};
}

std::optional<RootCause> root_cause(std::span<const RankOutcome> outcomes, int world_size,
                                    bool interrupted) {
  std::vector<const RankOutcome*> failures;
  for (const auto& outcome : outcomes) {
    if (failed(outcome, interrupted)) failures.push_back(&outcome);
  }
  if (failures.empty()) return std::nullopt;
  const RankOutcome& cause =
      **std::min_element(failures.begin(), failures.end(),
                         [](const auto* a, const auto* b) { return distance(*a) < distance(*b); });
  const bool all_the_same =
      failures.size() == outcomes.size() &&
      std::all_of(failures.begin(), failures.end(), [&](const RankOutcome* other) {
        return cause.error && other->error && other->error->code() == cause.error->code() &&
               std::string_view(other->error->what()) == cause.error->what();
      });
  return RootCause{all_the_same ? *cause.error : error_of(cause, world_size),
                   distance(cause) <= kOwnError};
}

}  // namespace bimetal::launch
