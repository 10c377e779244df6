#pragma once
// The program's exit statuses; docs/errors.md lists them for users.

#include "bimetal/base/error.h"
#include "bimetal/launch/local/stop_request.h"

namespace bimetal::cli {

inline constexpr int kSuccess = 0;
inline constexpr int kUsage = 2;                                 ///< same as InvalidArgument
inline constexpr int kInterrupted = launch::kInterruptedStatus;  ///< by Ctrl-C or SIGTERM

/// From 2 on, in the order of ErrorCode. 1 is never used: shells and tools use it for themselves.
int exit_status(ErrorCode code) noexcept;

}  // namespace bimetal::cli
