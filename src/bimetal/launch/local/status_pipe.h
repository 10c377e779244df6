#pragma once
// A rank's reports to its launcher while it runs, and the cause if it fails, so that the launcher
// can print one message for the whole job. JSON lines over a pipe:
// {"event":"checkpoint","path":…,"step":…}, {"event":"error","code":…,"message":…,"rank":…},
// {"event":"rescue","state":…,"lost":…,"step":…, "path":…,"cause":…} when the state of a lost rank
// is saved. For engines that bring newcomers to an elastic job {"event":"door","address":…},
// {"event":"leads"} and {"event":"left"}; for those that show how a job gets on
// {"event":"progress","epoch":…,"epochs":…,"step":…,"steps":…,"loss":…,"samples_per_s":…,
// "efficiency":…,"shares":[…]} and {"event":"evaluated","epoch":…,"accuracy":…,"loss":…}.

#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "bimetal/base/error.h"
#include "bimetal/launch/local/pipe.h"
#include "bimetal/progress/observer.h"

namespace bimetal::launch {

/// The variable that tells a rank which descriptor to write to.
inline constexpr const char* kStatusVariable = "BIMETAL_STATUS_FD";

/// Takes over the descriptor named by an environment variable, and removes the variable, so that
/// neither reaches a process that the rank may start. Empty where the variable is not set.
FileDescriptor inherited_descriptor(const char* variable);

/// The rank's end. Thread-safe; does nothing where no launcher listens.
class StatusReporter {
 public:
  /// Takes the descriptor from the environment. Make one per process.
  StatusReporter();

  /// Whether a launcher listens: it then prints errors in this rank's place.
  bool connected() const noexcept { return static_cast<bool>(pipe_); }

  void checkpoint(const std::string& path, std::int64_t step);
  void failed(const Error& error);
  void rescue(const progress::Rescue& rescue);
  /// The address at which others can join the job.
  void door(const std::string& address);
  /// This rank is number 0 from now on.
  void leads();
  /// It ends, and the others go on.
  void left();
  void progress(const progress::Progress& progress);
  /// A metric is a field under its name.
  void evaluated(std::int64_t epoch, const progress::Evaluation& evaluation);

 private:
  void write_line(const std::string& line);

  std::mutex mutex_;
  FileDescriptor pipe_;
};

/// The reports of one rank that the launcher has heard.
class RankStatus {
 public:
  /// Takes in bytes of the pipe; lines that make no sense are passed over.
  void feed(std::string_view bytes);

  const std::optional<Error>& error() const noexcept { return error_; }
  const std::string& last_checkpoint() const noexcept { return last_checkpoint_; }
  /// For a job that keeps copies of shards: its last action on a rank that is lost.
  const std::optional<progress::Rescue>& rescue() const noexcept { return rescue_; }

 private:
  void take_line(std::string_view line);

  std::string partial_;
  std::optional<Error> error_;
  std::string last_checkpoint_;
  std::optional<progress::Rescue> rescue_;
};

/// The variable that tells a rank which descriptor to watch.
inline constexpr const char* kLifelineVariable = "BIMETAL_LIFELINE_FD";

/// If the launcher has given this process a lifeline, watches it on a thread of its own until the
/// process ends; when it is cut, ends the process at once with `exit_status`. Call once.
void watch_lifeline(int exit_status);

}  // namespace bimetal::launch
