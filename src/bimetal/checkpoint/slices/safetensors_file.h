#pragma once
// A safetensors file of which parts are read, and none before it is asked for.

#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>

#include "bimetal/base/input_file.h"
#include "bimetal/checkpoint/safetensors_header.h"

namespace bimetal::checkpoint {

/// Use from one thread.
class SafetensorsFile {
 public:
  /// Reads the header, with read_safetensors' checks and errors.
  explicit SafetensorsFile(const std::filesystem::path& path);

  const SafetensorsHeader& header() const noexcept { return header_; }

  /// Error(CorruptData) if there is no such tensor.
  const TensorEntry& entry(const std::string& name) const;

  /// As many elements as `out` holds, from the tensor's element `first` on, which it must have.
  void read(const TensorEntry& entry, std::int64_t first, std::span<std::byte> out);

 private:
  std::string origin_;
  InputFile file_;
  SafetensorsHeader header_;
  std::map<std::string, std::size_t> places_;  ///< of each tensor, in the header
};

}  // namespace bimetal::checkpoint
