#pragma once
// Any exception as one of ours, fit to be shown.

#include <exception>

#include "bimetal/base/error.h"

namespace bimetal::cli {

/// As to_error; of what becomes Internal, the first line (libtorch's texts go on with a stack
/// trace).
Error as_error(const std::exception& exception);

/// Prints "bimetal: error: …" to standard error.
void print_error(const Error& error);

}  // namespace bimetal::cli
