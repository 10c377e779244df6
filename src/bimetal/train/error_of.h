#pragma once
// What users are told of an exception that is not the project's own.

#include <exception>
#include <optional>
#include <string>

#include "bimetal/base/error.h"

namespace bimetal::train {

/// The error that says in one line what ended `who` ("rank 3"): OutOfMemory, Unsupported for an
/// operation without a deterministic kernel, or else Internal. `rank`: whom it names. To be called
/// where the exception is caught.
Error error_of(const std::exception& exception, const std::string& who, std::optional<int> rank);

}  // namespace bimetal::train
