#pragma once
// Any exception as one of ours, fit to be shown.

#include <exception>

#include "bimetal/base/error.h"

namespace bimetal::cli {

/// A bimetal::Error stays what it is; others become Internal, or OutOfMemory for std::bad_alloc,
/// with the first line of their text (libtorch's go on with a stack trace).
Error as_error(const std::exception& exception);

/// Prints "bimetal: error: …" to standard error.
void print_error(const Error& error);

}  // namespace bimetal::cli
