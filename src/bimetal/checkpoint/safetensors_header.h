#pragma once
// The JSON header of a safetensors file: what it says, and whether it can be true.
// Private to what reads and writes such files.

#include <torch/csrc/api/include/torch/types.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
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

/// Reads the beginning of `size` bytes, by a `read` that fills its argument or throws: the header's
/// length and the header. `data`: where what it describes begins. Errors as parse_header's.
struct SafetensorsHeader {
  std::vector<TensorEntry> entries;
  std::uint64_t data = 0;
};
SafetensorsHeader read_header(std::uint64_t size,
                              const std::function<void(std::span<std::byte>)>& read,
                              const std::string& file);

/// Error(CorruptData) for bytes that are no values of the type: of bool, all but 0 and 1, which
/// would be undefined behaviour for whoever computes with them.
void require_values(const TensorEntry& entry, std::span<const std::byte> bytes,
                    const std::string& file);

/// The header's text, padded with spaces so that the data after it is aligned to 8 bytes.
/// Error(InvalidArgument) for names that are no UTF-8 or taken by the format.
std::string header_text(const std::vector<TensorEntry>& entries);

/// "F32"; empty if the format has no name for `dtype`.
std::string_view format_name(torch::Dtype dtype);
std::optional<torch::Dtype> named_dtype(std::string_view name);

}  // namespace bimetal::checkpoint
