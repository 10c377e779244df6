#pragma once
// The rank's side of Ctrl-C: an orderly end between two steps, with a checkpoint (POSIX).

namespace bimetal::launch {

/// Exit status of a rank that was asked to stop, as shells give it to a program ended by Ctrl-C.
inline constexpr int kInterruptedStatus = 130;

/// While one exists, the first SIGINT or SIGTERM only sets requested(); another one, a second or
/// more later, ends the process at once with kInterruptedStatus. (Sooner ones are the same Ctrl-C,
/// which reaches a rank twice when its launcher forwards what the terminal already sent.) One at a
/// time.
class StopRequest {
 public:
  StopRequest();
  ~StopRequest();
  StopRequest(const StopRequest&) = delete;
  StopRequest& operator=(const StopRequest&) = delete;

  bool requested() const noexcept;
  /// The first was SIGTERM.
  bool by_term() const noexcept;
};

}  // namespace bimetal::launch
