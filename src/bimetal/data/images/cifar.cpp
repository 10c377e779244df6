#include "bimetal/data/images/cifar.h"

#include <fmt/format.h>
#include <torch/csrc/api/include/torch/types.h>

#include <vector>

#include "bimetal/base/error.h"
#include "bimetal/data/gzip_file.h"

namespace bimetal::data {
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
