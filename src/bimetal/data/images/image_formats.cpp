#include "bimetal/data/images/image_formats.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/api/include/torch/types.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "bimetal/base/error.h"
#include "bimetal/data/gzip_file.h"

namespace bimetal::data {
namespace {

constexpr std::uint8_t kUnsignedByte = 0x08;
constexpr std::size_t kPiece = std::size_t{4} << 20;

/// A file in pieces, and its fault.
class Reader {
 public:
  explicit Reader(const std::filesystem::path& path) : file_(path) {}

  /// Reads up to `size` bytes (at most kPiece); fewer only at the end of the file.
  std::size_t read(std::uint8_t* bytes, std::size_t size) {
    return file_.read(std::as_writable_bytes(std::span(bytes, size)));
  }

  Error corrupt(const std::string& found) const {
    return Error(ErrorCode::CorruptData,
                 fmt::format("'{}' is no sound IDX file: {}; fetch it again", file_.name(), found));
  }

 private:
  GzipFile file_;
};

std::vector<std::int64_t> read_shape(Reader& reader) {
  std::array<std::uint8_t, 4> magic{};
  if (reader.read(magic.data(), magic.size()) < magic.size()) {
    throw reader.corrupt("it ends within its first four bytes");
  }
  if (magic[0] != 0 || magic[1] != 0 || magic[3] == 0) {
    throw reader.corrupt(
        fmt::format("it begins with {:02x}, not with 00 00 08 and a number of dimensions",
                    fmt::join(magic, " ")));
  }
  if (magic[2] != kUnsignedByte) {
    throw reader.corrupt(fmt::format(
        "its elements are of type 0x{:02x}; only unsigned bytes (0x08) are supported", magic[2]));
  }
  std::vector<std::int64_t> shape;
  for (int i = 0; i < magic[3]; ++i) {
    std::array<std::uint8_t, 4> size{};
    if (reader.read(size.data(), size.size()) < size.size()) {
      throw reader.corrupt(fmt::format("it ends within its {} dimensions", magic[3]));
    }
    shape.push_back((std::int64_t{size[0]} << 24) | (size[1] << 16) | (size[2] << 8) | size[3]);
  }
  return shape;
}

std::size_t element_count(const Reader& reader, const std::vector<std::int64_t>& shape) {
  if (std::find(shape.begin(), shape.end(), 0) != shape.end()) return 0;
  std::int64_t count = 1;
  for (const std::int64_t size : shape) {
    if (count > std::numeric_limits<std::int64_t>::max() / size) {
      throw reader.corrupt(fmt::format("its dimensions {} overflow", fmt::join(shape, "x")));
    }
    count *= size;
  }
  return static_cast<std::size_t>(count);
}

/// Grows with the file's real contents: a header that lies never leads to a huge allocation.
std::vector<std::uint8_t> read_elements(Reader& reader, const std::vector<std::int64_t>& shape) {
  const std::size_t count = element_count(reader, shape);
  std::vector<std::uint8_t> bytes;
  while (bytes.size() < count) {
    const std::size_t have = bytes.size();
    const std::size_t piece = std::min(kPiece, count - have);
    bytes.resize(have + piece);
    const std::size_t got = reader.read(bytes.data() + have, piece);
    if (got < piece) {
      throw reader.corrupt(
          fmt::format("it is truncated: its dimensions {} need {} bytes, it has {}",
                      fmt::join(shape, "x"), count, have + got));
    }
  }
  // Also makes zlib compare the checksum at the end of a compressed file.
  std::uint8_t beyond = 0;
  if (reader.read(&beyond, 1) != 0) {
    throw reader.corrupt(fmt::format("it is longer than the {} bytes of its dimensions {}", count,
                                     fmt::join(shape, "x")));
  }
  return bytes;
}

}  // namespace

torch::Tensor read_idx(const std::filesystem::path& path) {
  Reader reader(path);
  const std::vector<std::int64_t> shape = read_shape(reader);
  auto bytes = std::make_shared<std::vector<std::uint8_t>>(read_elements(reader, shape));
  return torch::from_blob(
      bytes->data(), shape, [bytes](void*) {}, torch::kUInt8);
}

namespace {

constexpr std::int64_t kSide = 32, kChannels = 3, kClasses = 10;
constexpr std::int64_t kRecord = 1 + kChannels * kSide * kSide;

Error corrupt(const std::filesystem::path& file, const std::string& found) {
  return {
      ErrorCode::CorruptData,
      fmt::format("'{}' is no sound file of CIFAR-10: {}; fetch it again", file.string(), found)};
}

/// uint8 [records, 1 + pixels].
torch::Tensor read_records(const std::filesystem::path& path) {
  auto bytes = GzipFile(path).read_all();
  const auto size = static_cast<std::int64_t>(bytes.size());
  if (size == 0 || size % kRecord != 0) {
    throw corrupt(path, fmt::format("it has {} bytes, which are no whole number of records of {}",
                                    size, kRecord));
  }
  const auto records =
      torch::from_blob(bytes.data(), {size / kRecord, kRecord}, torch::kUInt8).clone();
  const auto largest = records.select(1, 0).max().item<std::int64_t>();
  if (largest >= kClasses) {
    throw corrupt(path,
                  fmt::format("it holds a label {}, but there are {} classes", largest, kClasses));
  }
  return records;
}

}  // namespace

ImageDataset read_cifar10(std::span<const std::filesystem::path> files) {
  std::vector<torch::Tensor> parts;
  for (const auto& file : files) parts.push_back(read_records(file));
  const auto records = torch::cat(parts);
  ImageDataset set;
  set.images = records.narrow(1, 1, kRecord - 1)
                   .contiguous()
                   .view({records.size(0), kChannels, kSide, kSide});
  set.labels = records.select(1, 0).to(torch::kInt64);
  set.classes = kClasses;
  return set;
}

}  // namespace bimetal::data
