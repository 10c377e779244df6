#pragma once
// Opens files with any letters in their names. Windows' own encoding of narrow text lacks some
// letters, and std::fopen and std::getenv lose them.

#include <cstdio>
#include <filesystem>

namespace bimetal {

/// As std::fopen.
std::FILE* open_file(const std::filesystem::path& path, const char* mode);

/// What an environment variable holds; empty where it is not set.
std::filesystem::path path_in_environment(const char* variable);

}  // namespace bimetal
