#include "bimetal/data/images/dataset.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/api/include/torch/types.h>

#include <algorithm>
#include <cmath>
#include <span>
#include <utility>
#include <vector>

#include "bimetal/base/error.h"
#include "bimetal/data/images/image_formats.h"
#include "bimetal/task/dropout.h"

namespace bimetal::data {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void throw_mismatch(const std::string& what) {
  throw Error(ErrorCode::CorruptData, what + "; fetch the files again");
}

ImageDataset read_set(const fs::path& image_file, const fs::path& label_file) {
  ImageDataset set;
  const torch::Tensor images = read_idx(image_file);
  const torch::Tensor labels = read_idx(label_file);
  if (images.dim() != 3 || images.numel() == 0) {
    throw_mismatch(fmt::format("'{}' holds no images: its dimensions are {}, not N x H x W",
                               image_file.string(), fmt::join(images.sizes(), "x")));
  }
  if (labels.dim() != 1) {
    throw_mismatch(fmt::format("'{}' holds no labels: its dimensions are {}, not N",
                               label_file.string(), fmt::join(labels.sizes(), "x")));
  }
  if (images.size(0) != labels.size(0)) {
    throw_mismatch(fmt::format("'{}' holds {} images but '{}' {} labels", image_file.string(),
                               images.size(0), label_file.string(), labels.size(0)));
  }
  const auto largest = labels.max().item<std::int64_t>();
  if (largest >= set.classes) {
    throw_mismatch(fmt::format("'{}' holds a label {}, but there are {} classes",
                               label_file.string(), largest, set.classes));
  }
  set.images = images.unsqueeze(1);
  set.labels = labels.to(torch::kInt64);
  return set;
}

/// Mean and deviation of each channel's pixel ÷ 255, exact to rounding: from the counts of the 256
/// values.
void set_normalisation(ImageDataset& set) {
  set.mean.clear();
  set.stddev.clear();
  const auto values = torch::arange(256, torch::kFloat64) / 255.0;
  for (const auto& channel : set.images.unbind(1)) {
    const auto counts = torch::bincount(channel.flatten(), {}, 256).to(torch::kFloat64);
    const double pixels = counts.sum().item<double>();
    const double mean = (counts * values).sum().item<double>() / pixels;
    const double variance = (counts * (values - mean).square()).sum().item<double>() / pixels;
    set.mean.push_back(mean);
    set.stddev.push_back(variance > 0.0 ? std::sqrt(variance) : 1.0);
  }
}

void require_for_channels(const char* what, const std::vector<double>& numbers,
                          std::int64_t channels) {
  if (numbers.size() == 1 || static_cast<std::int64_t>(numbers.size()) == channels) return;
  throw Error(
      ErrorCode::InvalidArgument,
      fmt::format(
          "{} has {} numbers, and the images {} channels: give one for each, or one for all", what,
          numbers.size(), channels));
}

/// The value that each of the 256 values becomes, in each channel.
torch::Tensor normalised_values(const ImageDataset& set, std::int64_t channels,
                                torch::Dtype dtype) {
  require_for_channels("the mean", set.mean, channels);
  require_for_channels("the deviation", set.stddev, channels);
  const auto pixels = torch::arange(256, torch::kFloat64).div_(255.0).expand({channels, 256});
  const auto mean = torch::tensor(set.mean, torch::kFloat64).unsqueeze(1);
  const auto stddev = torch::tensor(set.stddev, torch::kFloat64).unsqueeze(1);
  return pixels.sub(mean).div_(stddev).to(dtype).contiguous();
}

/// Copies with each pixel replaced by its normalised value: gather, conversion and arithmetic in
/// one pass, on the calling thread alone (a prefetch thread must not wake a second OpenMP team).
/// `values`: [channels, 256].
template <typename Element>
void gather(const ImageDataset& set, const torch::Tensor& indices, const torch::Tensor& values,
            torch::Tensor& x) {
  const std::int64_t channels = values.size(0);
  const std::int64_t pixels = c10::multiply_integers(set.images.sizes().slice(2));
  const auto* from = set.images.const_data_ptr<std::uint8_t>();
  auto* to = static_cast<Element*>(x.mutable_data_ptr());
  const auto* index = indices.const_data_ptr<std::int64_t>();
  for (std::int64_t i = 0; i < indices.size(0); ++i) {
    const std::uint8_t* pixel = from + index[i] * channels * pixels;
    const auto* value_of = static_cast<const Element*>(values.const_data_ptr());
    for (std::int64_t c = 0; c < channels; ++c, value_of += 256) {
      for (std::int64_t p = 0; p < pixels; ++p) *to++ = value_of[*pixel++];
    }
  }
}

void check_type(torch::Dtype dtype) {
  if (torch::isFloatingType(dtype) && torch::elementSize(dtype) >= 2) return;
  throw Error(ErrorCode::InvalidArgument,
              fmt::format("images cannot be normalised as {}", torch::toString(dtype)));
}

TrainTest read_sets(const DatasetFiles& dataset, const LoadOptions& options) {
  const auto& files = dataset.files;
  if (dataset.name == kImageFolders) return read_image_folders(dataset.folder, options);
  if (dataset.name == "cifar-10") {
    const std::span all(files);
    return {read_cifar10(all.first(all.size() - 1)), read_cifar10(all.last(1))};
  }
  return {read_set(files.at(0), files.at(1)), read_set(files.at(2), files.at(3))};
}

}  // namespace

void check_indices(const ImageDataset& dataset, const torch::Tensor& indices) {
  if (indices.dim() != 1 || indices.scalar_type() != torch::kInt64) {
    throw Error(ErrorCode::InvalidArgument, "a batch is chosen by int64 indices in one dimension");
  }
  if (indices.numel() == 0) return;
  const auto [least, greatest] = torch::aminmax(indices);
  if (least.item<std::int64_t>() < 0 || greatest.item<std::int64_t>() >= dataset.size()) {
    throw Error(
        ErrorCode::InvalidArgument,
        fmt::format("indices {}…{} reach outside a dataset of {} samples",
                    least.item<std::int64_t>(), greatest.item<std::int64_t>(), dataset.size()));
  }
}

Batch make_batch(const ImageDataset& dataset, const torch::Tensor& indices, torch::Dtype dtype) {
  check_indices(dataset, indices);
  check_type(dtype);
  std::vector<std::int64_t> shape = dataset.images.sizes().vec();
  shape[0] = indices.size(0);
  Batch batch{torch::empty(shape, dtype), dataset.labels.index_select(0, indices)};
  const torch::Tensor values = normalised_values(dataset, shape[1], dtype);
  const torch::Tensor contiguous = indices.contiguous();
  switch (torch::elementSize(dtype)) {
    case 2: gather<std::uint16_t>(dataset, contiguous, values, batch.x); break;
    case 4: gather<std::uint32_t>(dataset, contiguous, values, batch.x); break;
    default: gather<std::uint64_t>(dataset, contiguous, values, batch.x); break;
  }
  return batch;
}

torch::Tensor normalised(const torch::Tensor& pixels, const std::vector<double>& mean,
                         const std::vector<double>& stddev, torch::Dtype dtype) {
  ImageDataset set;
  set.images = pixels;
  set.labels = torch::zeros({pixels.size(0)}, torch::kInt64);
  set.mean = mean;
  set.stddev = stddev;
  return make_batch(set, torch::arange(pixels.size(0)), dtype).x;
}

TrainTest load_dataset(const DatasetFiles& dataset, const LoadOptions& options) {
  auto sets = read_sets(dataset, options);
  if (sets.train.images.sizes().slice(1) != sets.test.images.sizes().slice(1)) {
    throw_mismatch(fmt::format("in '{}' the images for training are {} and those for testing {}",
                               dataset.folder.string(),
                               fmt::join(sets.train.images.sizes().slice(1), "x"),
                               fmt::join(sets.test.images.sizes().slice(1), "x")));
  }
  set_normalisation(sets.train);
  const auto channels = sets.train.images.size(1);
  if (!options.mean.empty()) sets.train.mean = options.mean;
  if (!options.stddev.empty()) sets.train.stddev = options.stddev;
  require_for_channels("data.mean", sets.train.mean, channels);
  require_for_channels("data.stddev", sets.train.stddev, channels);
  sets.test.mean = sets.train.mean;
  sets.test.stddev = sets.train.stddev;
  return sets;
}

TrainTest load_dataset(const std::string& name, const fs::path& path) {
  return load_dataset(find_dataset(name, path));
}

task::Values ImageSet::batch(std::span<const std::int64_t> samples) const {
  const auto indices = torch::empty({static_cast<std::int64_t>(samples.size())}, torch::kInt64);
  std::ranges::copy(samples, indices.mutable_data_ptr<std::int64_t>());
  const auto draws = task::current_draws();
  if (augment_ == Augment::No || !draws) {
    auto batch = make_batch(images_, indices, dtype_);
    return {std::move(batch.x), std::move(batch.y)};
  }
  check_indices(images_, indices);
  return {
      normalised(augmented(images_.images, samples, *draws), images_.mean, images_.stddev, dtype_),
      images_.labels.index_select(0, indices)};
}

namespace {

/// 0 … bound − 1, as evenly as 2³² numbers allow.
std::int64_t scaled(std::uint32_t drawn, std::uint64_t bound) {
  return static_cast<std::int64_t>((drawn * bound) >> 32);
}

/// One channel of height × width pixels; `to` is black.
void copy_cropped(const std::uint8_t* from, std::uint8_t* to, std::int64_t height,
                  std::int64_t width, const Crop& crop) {
  const auto top = std::max<std::int64_t>(0, crop.down);
  const auto bottom = height + std::min<std::int64_t>(0, crop.down);
  const auto left = std::max<std::int64_t>(0, crop.right);
  const auto right = width + std::min<std::int64_t>(0, crop.right);
  if (left >= right) return;
  for (auto row = top; row < bottom; ++row) {
    const auto* source = from + (row - crop.down) * width + left - crop.right;
    auto* line = to + row * width;
    std::copy_n(source, right - left, line + left);
    if (crop.flipped) std::reverse(line, line + width);
  }
}

}  // namespace

Crop draw_crop(const task::Draws& draws, std::int64_t sample) {
  const auto number = static_cast<std::uint64_t>(sample);
  const auto drawn =
      philox({0, 0, static_cast<std::uint32_t>(number), static_cast<std::uint32_t>(number >> 32)},
             task::key_of(draws, task::kAugmentation));
  constexpr std::uint64_t places = 2 * kCropPadding + 1;
  return {.down = scaled(drawn[0], places) - kCropPadding,
          .right = scaled(drawn[1], places) - kCropPadding,
          .flipped = scaled(drawn[2], 2) == 1};
}

// On the calling thread alone, as in make_batch.
torch::Tensor augmented(const torch::Tensor& images, std::span<const std::int64_t> samples,
                        const task::Draws& draws) {
  auto sizes = images.sizes().vec();
  sizes[0] = static_cast<std::int64_t>(samples.size());
  const auto result = torch::zeros(sizes, torch::kUInt8);
  const auto height = sizes[2], width = sizes[3], plane = height * width;
  const auto* from = images.const_data_ptr<std::uint8_t>();
  auto* to = result.mutable_data_ptr<std::uint8_t>();
  for (const auto sample : samples) {
    const auto crop = draw_crop(draws, sample);
    for (std::int64_t channel = 0; channel < sizes[1]; ++channel, to += plane) {
      copy_cropped(from + (sample * sizes[1] + channel) * plane, to, height, width, crop);
    }
  }
  return result;
}

}  // namespace bimetal::data
