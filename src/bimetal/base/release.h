#pragma once
// The version of this Bimetal.

#include <string_view>

namespace bimetal {

/// The version of this build, as in the project's CMakeLists.txt: "0.1.0". All processes of a job
/// must have the same.
std::string_view release() noexcept;

}  // namespace bimetal
