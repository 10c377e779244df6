#pragma once
// What a program says when something is wrong, and its exit statuses; docs/errors.md lists them for
// users.

#include <exception>
#include <functional>
#include <string_view>

#include "bimetal/base/error.h"
#include "bimetal/launch/local/process.h"

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

/// Of a line: warning, error, output…, and its text.
using Listener = std::function<void(std::string_view kind, std::string_view text)>;

/// From now on warnings of the library go to standard error, and more with BIMETAL_DEBUG; a rank
/// says which one it is. `also`: gets them, too, until another call takes its place.
void show_warnings(const Listener& also = {});

/// A line that this process has printed, for the log of the last call; nothing where it has none.
/// May be called from any thread.
void note_output(std::string_view line);

}  // namespace bimetal::cli
