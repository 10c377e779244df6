#include "bimetal/cli/train/guest_watch.h"

#include <fmt/format.h>

#include <chrono>

#include "bimetal/base/error.h"
#include "bimetal/cli/exit_status.h"
#include "bimetal/cli/terminal.h"
#include "bimetal/cli/train/server_directory.h"

namespace bimetal::cli {
namespace {

constexpr std::chrono::milliseconds kLookForItEvery{200};
/// With kLookForItEvery less than the second after which a guest is to be gone.
constexpr std::chrono::milliseconds kToEndThen{700};

/// Whether a worker says no more than that it found nobody.
bool says_it_is_alone(const Error& error) {
  return error.code() == ErrorCode::PeerLost || error.code() == ErrorCode::Timeout ||
         error.code() == ErrorCode::Aborted;
}

}  // namespace

bool GuestWatch::over() {
  if (job_ != Job::there) return job_ == Job::ended || !copies_;
  try {
    if (has_ended(store_)) job_ = Job::ended;
  } catch (const Error& error) {
    if (error.code() != ErrorCode::Timeout) job_ = Job::gone;  // a slow answer is one
  }
  return job_ == Job::ended || (job_ == Job::gone && !copies_);
}

Error GuestWatch::gone_error(const std::string& seen_here) const {
  return {ErrorCode::PeerLost,
          fmt::format("the job of {} has ended, or that machine is gone: nothing answers there any "
                      "more{}{}",
                      host_, seen_here.empty() ? "" : "; ", seen_here)};
}

int GuestWatch::run(launch::LaunchPlan plan, launch::SignalWatch& signals) {
  plan.over = [this] { return over(); };
  plan.ask_whether_over_every = kLookForItEvery;
  plan.grace_after_over = kToEndThen;
  launch::LaunchResult result;
  try {
    result = launch::run_ranks(plan, signals, announce_stop);
  } catch (const launch::JobFailed& failure) {
    if (!says_it_is_alone(failure) || !over()) throw;
    if (job_ == Job::gone) throw gone_error(failure.what());
  }
  if (result.interrupted) return conclude(result);
  if (job_ == Job::gone && !result.left_behind.empty()) throw gone_error({});
  Terminal().print(fmt::format("the job of {} has ended", host_));
  return kSuccess;
}

}  // namespace bimetal::cli
