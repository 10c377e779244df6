#pragma once
// Files by names of any letters: those that Windows' own encoding of narrow text lacks are lost on
// the way through std::fopen and std::getenv.

#include <cstdio>
#include <filesystem>

namespace bimetal {

/// As std::fopen.
std::FILE* open_file(const std::filesystem::path& path, const char* mode);

/// What an environment variable holds; empty where it is not set.
std::filesystem::path path_in_environment(const char* variable);

}  // namespace bimetal
