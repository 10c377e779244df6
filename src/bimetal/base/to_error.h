#pragma once
// Exceptions of any type as the project's own.

#include <exception>

#include "bimetal/base/error.h"

namespace bimetal {

/// An Error as it stands; else OutOfMemory for std::bad_alloc, System for std::system_error, and
/// Internal with the exception's words. `failure` holds one.
Error to_error(const std::exception_ptr& failure);
Error to_error(const std::exception& exception);

}  // namespace bimetal
