#include "bimetal/train/safetensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <fstream>
#include <span>
#include <system_error>
#include <vector>

#include "bimetal/base/atomic_file.h"
#include "bimetal/base/error.h"
#include "bimetal/base/wire.h"
#include "bimetal/train/safetensors_header.h"

static_assert(std::endian::native == std::endian::little,
              "tensor data is copied as it lies in memory, and the format is little-endian");

namespace bimetal::train {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kLengthBytes = 8;

void require_storable(const std::string& name, const torch::Tensor& tensor) {
  if (!tensor.defined() || tensor.layout() != torch::kStrided) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("tensor '{}' is undefined or sparse", name));
  }
  if (!has_format_name(tensor.scalar_type())) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("tensor '{}' is of type {}, which safetensors files do not know", name,
                            c10::toString(tensor.scalar_type())));
  }
}

/// Largest elements first, so that each tensor is aligned to its own element size.
std::vector<TensorEntry> lay_out(const TensorMap& tensors) {
  std::vector<TensorEntry> entries;
  for (const auto& [name, tensor] : tensors) {
    require_storable(name, tensor);
    entries.push_back({name, tensor.scalar_type(), tensor.sizes().vec(), 0, tensor.nbytes()});
  }
  std::stable_sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) {
    return c10::elementSize(a.dtype) > c10::elementSize(b.dtype);
  });
  std::uint64_t offset = 0;
  for (TensorEntry& entry : entries) {
    entry.begin += offset;
    offset = entry.end += offset;
  }
  return entries;
}

[[noreturn]] void fail(const fs::path& path, const std::string& flaw) {
  throw Error(ErrorCode::CorruptData,
              fmt::format("{} is damaged or no safetensors file: {}", path.string(), flaw));
}

/// Reads a file whose size is known beforehand, so that no length in it is believed blindly.
class Reader {
 public:
  explicit Reader(const fs::path& path) : path_(path) {
    std::error_code error;
    left_ = fs::file_size(path, error);
    if (error) throw system_error("cannot read " + path.string(), error.value());
    stream_.open(path, std::ios::binary);
    if (!stream_) throw system_error("cannot read " + path.string(), errno);
  }

  std::uint64_t left() const { return left_; }

  void read(std::span<std::byte> out) {
    if (out.size() > left_) fail(path_, "it ends early");
    stream_.read(reinterpret_cast<char*>(out.data()), static_cast<std::streamsize>(out.size()));
    if (!stream_) fail(path_, "it ends early");
    left_ -= out.size();
  }

 private:
  const fs::path& path_;
  std::ifstream stream_;
  std::uint64_t left_ = 0;
};

std::vector<TensorEntry> read_header(Reader& reader, const fs::path& path) {
  std::array<std::byte, kLengthBytes> length_field;
  reader.read(length_field);
  const std::uint64_t length = WireReader(length_field).u64();
  if (length > std::min(reader.left(), kMaxHeaderBytes)) {
    fail(path, fmt::format("its header cannot be {} bytes long", length));
  }
  std::string text(length, ' ');
  reader.read(std::as_writable_bytes(std::span(text)));
  return parse_header(text, reader.left(), path.string());
}

torch::Tensor read_tensor(Reader& reader, const TensorEntry& entry, const fs::path& path) {
  auto tensor = torch::empty(entry.shape, torch::TensorOptions().dtype(entry.dtype));
  const std::span bytes(static_cast<std::byte*>(tensor.data_ptr()), tensor.nbytes());
  reader.read(bytes);
  // Any other value in a bool is undefined behaviour for whoever computes with it.
  const bool valid =
      entry.dtype != torch::kBool ||
      std::all_of(bytes.begin(), bytes.end(), [](std::byte b) { return b <= std::byte{1}; });
  if (!valid) fail(path, fmt::format("tensor '{}' holds values that are no booleans", entry.name));
  return tensor;
}

}  // namespace

void write_safetensors(const fs::path& path, const TensorMap& tensors) {
  const auto entries = lay_out(tensors);
  const std::string header = header_text(entries);
  WireWriter length;
  length.u64(header.size());
  AtomicFile file(path);
  file.write(length.bytes());
  file.write(header);
  for (const TensorEntry& entry : entries) {
    const auto tensor = tensors.at(entry.name).detach().cpu().contiguous();
    file.write(std::span(static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes()));
  }
  file.commit();
}

TensorMap read_safetensors(const fs::path& path) {
  Reader reader(path);
  TensorMap tensors;
  for (const TensorEntry& entry : read_header(reader, path)) {
    tensors.emplace(entry.name, read_tensor(reader, entry, path));
  }
  return tensors;
}

}  // namespace bimetal::train
