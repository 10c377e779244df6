#pragma once
// SHA-256 as checkpoints use it: to notice damage, not to keep out forgers.

#include <filesystem>
#include <string>
#include <string_view>

namespace bimetal::checkpoint {

/// 64 lower-case hexadecimal digits.
std::string sha256_of(std::string_view bytes);

/// Of a file's contents, read in pieces. Error(System) if it cannot be read.
std::string sha256_of_file(const std::filesystem::path& path);

}  // namespace bimetal::checkpoint
