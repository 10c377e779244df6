#include "bimetal/data/images/augment.h"

#include <torch/csrc/api/include/torch/types.h>

#include <algorithm>
#include <vector>

namespace bimetal::data {
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
