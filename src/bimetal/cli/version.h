#pragma once
// The version of this build, from the project's CMakeLists.txt.

namespace bimetal::cli {

inline constexpr const char* kVersion = BIMETAL_VERSION;

}  // namespace bimetal::cli
