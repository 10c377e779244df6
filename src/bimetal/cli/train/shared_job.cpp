#include "bimetal/cli/train/shared_job.h"

#include <stdlib.h>

#include <asio/ip/host_name.hpp>
#include <chrono>
#include <optional>

#include "bimetal/cli/train/local_ranks.h"

namespace bimetal::cli {
namespace {

/// How long to wait for another machine to say what went wrong there.
constexpr std::chrono::seconds kForTheCause{3};

std::optional<Error> cause_from_elsewhere(launch::JobBoard& board, launch::SignalWatch& signals) {
  const auto deadline = Deadline::after(kForTheCause);
  do {
    if (auto cause = board.failure()) return cause;
    signals.pause(std::chrono::milliseconds(50));
  } while (!deadline.expired());
  return std::nullopt;
}

/// The failure that this machine's terminal shows.
Error agreed_cause(const launch::JobFailed& failure, launch::JobBoard& board,
                   launch::SignalWatch& signals) {
  try {
    if (failure.first_hand()) {
      board.fail(failure, own_host_name());
    } else if (const auto cause = cause_from_elsewhere(board, signals)) {
      return with_resume_hint({{*cause, false}, failure.last_checkpoint(), failure.rescue()});
    }
  } catch (const Error&) {
    // The store is gone with the host; what this machine saw is then the best there is to tell.
  }
  return with_resume_hint(failure);
}

}  // namespace

net::Token read_token(const std::string& token_file) {
  return token_file.empty() ? net::Token::from_environment() : net::Token::from_file(token_file);
}

void add_encrypt(CLI::App& command, const std::string& group) {
  command
      .add_flag_callback(
          "--encrypt", [] { ::setenv("BIMETAL_ENCRYPTION", "on", 1); },
          "Encrypt all connections of the job; the same on every machine")
      ->group(group);
}

std::string own_host_name() {
  return asio::ip::host_name();
}

int run_shared_job(const launch::LaunchPlan& plan, launch::JobBoard& board,
                   launch::SignalWatch& signals) {
  try {
    return conclude(launch::run_ranks(plan, signals, announce_stop));
  } catch (const launch::JobFailed& failure) {
    throw agreed_cause(failure, board, signals);
  }
}

}  // namespace bimetal::cli
