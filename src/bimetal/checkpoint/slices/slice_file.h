#pragma once
// A file of slices as one rank writes it into a checkpoint that is not in place yet.
//
// SHA-256 as checkpoints use it: to notice damage, not to keep out forgers.

#include <sodium.h>
#include <torch/csrc/api/include/torch/types.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "bimetal/base/files.h"
#include "bimetal/checkpoint/checkpoint_manifest.h"
#include "bimetal/checkpoint/safetensors.h"
#include "bimetal/checkpoint/slices/tensor_index.h"

namespace bimetal::checkpoint {

/// The digest of bytes that come one after the other.
class Sha256 {
 public:
  Sha256() { crypto_hash_sha256_init(&state_); }
  void add(std::span<const std::byte> bytes);
  /// 64 lower-case hexadecimal digits. At most once, and nothing after it.
  std::string finish();

 private:
  crypto_hash_sha256_state state_;
};

/// 64 lower-case hexadecimal digits.
std::string sha256_of(std::string_view bytes);

/// The digest of a file's contents, read in pieces. Error(System) if it cannot be read.
std::string sha256_of_file(const std::filesystem::path& path);

/// The slice of a tensor that a rank keeps.
struct OwnSlice {
  std::string name;                 ///< of the tensor
  std::vector<std::int64_t> shape;  ///< of the whole tensor
  Slice slice;
  torch::Tensor values;  ///< the slice's elements, row-major, in any shape and on any device
};

/// "model-00001-of-00003.safetensors".
std::string slice_file_name(const char* what, int rank, int ranks);

/// The tensors that such a file holds, and where.
TensorIndex index_of(const std::vector<OwnSlice>& slices, const std::string& file);

/// The file's bytes, one tensor after the other; `written` is called after each.
void encode_slices(const std::vector<OwnSlice>& slices, const WriteBytes& write,
                   const std::function<void()>& written);

/// Checksummed as it is written. Errors are Error(System), name the file and give the cause. Use
/// from one thread.
class SliceFile {
 public:
  /// Makes it, empty.
  explicit SliceFile(const std::filesystem::path& path);
  void write(std::span<const std::byte> bytes);
  /// Brings it to the disk. At most once, and nothing after it.
  FileRecord finish();

 private:
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  std::filesystem::path path_;
  std::unique_ptr<std::FILE, Close> file_;
  Sha256 sum_;
  std::uint64_t size_ = 0;
};

// A safetensors file of which parts are read, and none before it is asked for.

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
