#pragma once
// Bimetal's errors as torch's: what the works and calls of a process group throw.

#include <c10/util/Exception.h>

#include <exception>
#include <optional>
#include <utility>

#include "bimetal/base/error.h"

namespace bimetal::c10d {

/// Reaches Python as bimetal.Error where the package's own bindings see it, else as its base
/// torch.distributed.DistBackendError (as from DDP's backward). The message ends with the code and
/// the rank: "… [peer_lost, rank 2]".
class BackendError : public c10::DistBackendError {
 public:
  explicit BackendError(const bimetal::Error& error);

  ErrorCode code() const noexcept { return code_; }
  /// Global rank that the error is about, if one is.
  std::optional<int> rank() const noexcept { return rank_; }

 private:
  ErrorCode code_;
  std::optional<int> rank_;
};

/// The same error for torch: what is a bimetal::Error becomes a BackendError, others stay.
std::exception_ptr as_backend_error(const std::exception_ptr& error);

/// Runs `call`; a bimetal::Error leaves as a BackendError.
template <typename Call>
decltype(auto) guarded(Call&& call) {
  try {
    return std::forward<Call>(call)();
  } catch (const Error& error) {
    throw BackendError(error);
  }
}

// What a thread of ours does before it first touches what belongs to torch's user: tensors, futures
// and their callbacks.

/// `enter` is run once on each such thread, before anything else of torch's is; `leave` where such
/// a thread ends while the rest of the process goes on as before. For what embeds this library:
/// Python's module makes the interpreter know the thread. Once, before any group is made.
void set_thread_entry(void (*enter)(), void (*leave)());

/// Called on every thread that completes works. Cheap after the first time.
void enter_thread();

/// The thread touches nothing of torch's afterwards.
void leave_thread();

}  // namespace bimetal::c10d
