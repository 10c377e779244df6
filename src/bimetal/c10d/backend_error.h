#pragma once
// Bimetal's errors as torch's, for what is thrown within autograd: torch knows the class there.

#include <c10/util/Exception.h>

#include <exception>
#include <optional>
#include <utility>

#include "bimetal/base/error.h"
#include "bimetal/comm/failure.h"

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

/// What has been thrown, as an operation's failure: Internal where it is none of Bimetal's.
comm::Failure failure_of(const std::exception_ptr& thrown);

/// Runs `call`; a bimetal::Error leaves as a BackendError.
template <typename Call>
decltype(auto) guarded(Call&& call) {
  try {
    return std::forward<Call>(call)();
  } catch (const Error& error) {
    throw BackendError(error);
  }
}

}  // namespace bimetal::c10d
