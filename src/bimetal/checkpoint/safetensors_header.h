#pragma once
// The JSON header of a safetensors file: what it says, and whether it can be true.
// Private to safetensors.cpp.

#include <torch/csrc/api/include/torch/types.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace bimetal::checkpoint {

/// The format's own limit; the reference implementation refuses larger headers, too.
inline constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;

struct TensorEntry {
  std::string name;
  torch::Dtype dtype = torch::kFloat;
  std::vector<std::int64_t> shape;
  std::uint64_t begin = 0, end = 0;  ///< bytes from the start of the data
};

/// Error(CorruptData): what has come from `origin` is not what it should be.
[[noreturn]] void refuse_safetensors(const std::string& origin, const std::string& flaw);

/// The entries in the order of their data, which they cover from 0 to `data_size` without a hole.
/// Error(CorruptData), beginning with `file`, if anything is amiss.
std::vector<TensorEntry> parse_header(std::string_view json, std::uint64_t data_size,
                                      const std::string& file);

/// The header's text, padded with spaces so that the data after it is aligned to 8 bytes.
/// Error(InvalidArgument) for names that are no UTF-8 or taken by the format.
std::string header_text(const std::vector<TensorEntry>& entries);

/// Whether the format has a name for `dtype`.
bool has_format_name(torch::Dtype dtype);

}  // namespace bimetal::checkpoint
