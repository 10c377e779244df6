#pragma once
// What a program says when something is wrong, and its exit statuses; docs/errors.md lists them for
// users.

#include <exception>
#include <string_view>

#include "bimetal/base/error.h"
#include "bimetal/launch/local/signal_watch.h"
#include "bimetal/progress/rank_log.h"

namespace bimetal::cli {

inline constexpr int kSuccess = 0;
inline constexpr int kUsage = 2;                                 ///< same as InvalidArgument
inline constexpr int kInterrupted = launch::kInterruptedStatus;  ///< by Ctrl-C or SIGTERM

/// From 2 on, in the order of ErrorCode. 1 is never used: shells and tools use it for themselves.
int exit_status(ErrorCode code) noexcept;

/// As to_error; of what becomes Internal, the first line (libtorch's texts go on with a stack
/// trace).
Error as_error(const std::exception& exception);

/// Prints "bimetal: error: …" to standard error.
void print_error(const Error& error);

/// From now on warnings of the library go to standard error, and more with BIMETAL_DEBUG; a rank
/// says which one it is. `log`: gets them, too; must outlive this, or be taken back by another
/// call.
void show_warnings(progress::RankLog* log = nullptr);

/// A line that this process has printed, for the log of the last call; nothing where it has none.
/// May be called from any thread.
void note_output(std::string_view line);

}  // namespace bimetal::cli
