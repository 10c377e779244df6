#pragma once
// Converts exceptions of any type, and other libraries' error codes, to the project's own.

#include <exception>
#include <string>
#include <system_error>

#include "bimetal/base/error.h"

namespace bimetal {

/// An Error as it stands; else OutOfMemory for std::bad_alloc, System for std::system_error, and
/// Internal with the exception's words. `failure` holds one.
Error to_error(const std::exception_ptr& failure);
Error to_error(const std::exception& exception);

/// A System error from a code that says whose number it has, as std::filesystem's: "<what>: <its
/// words>". Its bare value is no errno everywhere: on Windows it may be one of GetLastError()'s.
Error system_error(const std::string& what, const std::error_code& cause);

}  // namespace bimetal
