#pragma once
// The safetensors file format: u64 header length, JSON header, raw little-endian tensor data. Files
// and what processes send each other of a training's state are alike: data, nothing to execute.
// Format: https://github.com/huggingface/safetensors (README, "Format").

#include <torch/csrc/api/include/torch/types.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace bimetal::checkpoint {

// The JSON header of a safetensors file: its contents, and whether they can be true. Private to the
// code that reads and writes such files.

/// The format's own limit; the reference implementation refuses larger headers, too.
inline constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;

struct TensorEntry {
  std::string name;
  torch::Dtype dtype = torch::kFloat;
  std::vector<std::int64_t> shape;
  std::uint64_t begin = 0, end = 0;  ///< bytes from the start of the data
};

/// Error(CorruptData): the bytes from `origin` are not as they should be.
[[noreturn]] void refuse_safetensors(const std::string& origin, const std::string& flaw);

/// The entries in the order of their data, which they cover from 0 to `data_size` without a hole.
/// Error(CorruptData), beginning with `file`, if anything is amiss.
std::vector<TensorEntry> parse_header(std::string_view json, std::uint64_t data_size,
                                      const std::string& file);

/// Reads the beginning of `size` bytes, by a `read` that fills its argument or throws: the header's
/// length and the header. `data`: where the described data begins. Errors as parse_header's.
struct SafetensorsHeader {
  std::vector<TensorEntry> entries;
  std::uint64_t data = 0;
};
SafetensorsHeader read_header(std::uint64_t size,
                              const std::function<void(std::span<std::byte>)>& read,
                              const std::string& file);

/// Error(CorruptData) for bytes that are no values of the type. For bool these are all but 0 and 1:
/// computing with them would be undefined behaviour.
void require_values(const TensorEntry& entry, std::span<const std::byte> bytes,
                    const std::string& file);

/// The header's text, padded with spaces so that the data after it is aligned to 8 bytes.
/// Error(InvalidArgument) for names that are no UTF-8 or taken by the format.
std::string header_text(const std::vector<TensorEntry>& entries);

/// "F32"; empty if the format has no name for `dtype`.
std::string_view format_name(torch::Dtype dtype);
std::optional<torch::Dtype> named_dtype(std::string_view name);

using TensorMap = std::map<std::string, torch::Tensor>;

/// Strided tensors of float64/32/16, bfloat16, int64/32/16/8, uint8 and bool; they are copied to
/// the CPU and made contiguous as needed. Equal tensors give equal files. Atomic and on the disk
/// when it returns. Error(System) on failure, Error(InvalidArgument) for tensors or names that the
/// format cannot hold.
void write_safetensors(const std::filesystem::path& path, const TensorMap& tensors);

/// The same for tensors that need not be there all at once: each of `entries` (of which name, type
/// and shape count) is asked for when its turn has come.
using TensorOf = std::function<torch::Tensor(const std::string& name)>;
void write_safetensors(const std::filesystem::path& path, std::vector<TensorEntry> entries,
                       const TensorOf& tensor_of);

/// Error(InvalidArgument) for tensors that the format cannot hold.
void require_storable(const std::string& name, const torch::Tensor& tensor);

/// The bytes of such a file, from its first to its last, for whatever `write` does with them.
using WriteBytes = std::function<void(std::span<const std::byte>)>;
void encode_safetensors(const TensorMap& tensors, const WriteBytes& write);
void encode_safetensors(std::vector<TensorEntry> entries, const TensorOf& tensor_of,
                        const WriteBytes& write);

/// Validates header length, offsets, shapes and types against the file before allocating. The
/// tensors are on the CPU. Error(System) if it cannot be opened; Error(CorruptData) names the file
/// and the flaw.
TensorMap read_safetensors(const std::filesystem::path& path);

/// The bytes of such a file, without one. Error(InvalidArgument) as above.
std::vector<std::byte> encode_safetensors(const TensorMap& tensors);

/// The way back, with the same checks. Error(CorruptData) names `origin` and the flaw.
TensorMap decode_safetensors(std::span<const std::byte> bytes, const std::string& origin);

}  // namespace bimetal::checkpoint
