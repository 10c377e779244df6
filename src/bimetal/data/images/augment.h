#pragma once
// Random crops and flips of images, as is usual on CIFAR (He et al. 2016, section 4.2).

#include <torch/csrc/api/include/torch/types.h>

#include <cstdint>
#include <span>

#include "bimetal/task/dropout.h"

namespace bimetal::data {

inline constexpr std::int64_t kCropPadding = 4;

/// What is done with an image.
struct Crop {
  std::int64_t down = 0, right = 0;  ///< by so many pixels it moves, −kCropPadding … kCropPadding
  bool flipped = false;              ///< left and right are then exchanged
  bool operator==(const Crop&) const = default;
};

/// Depends on (seed, epoch, sample) alone: who computes a sample, and beside which others, makes no
/// difference. Of `draws` only the seed and the epoch count.
Crop draw_crop(const task::Draws& draws, std::int64_t sample);

/// The images `samples` of `images` (uint8 [N, C, H, W]) in that order, each cropped to its own
/// size out of itself padded with kCropPadding black pixels on every side, and flipped in half of
/// the cases. All are from 0 to N − 1.
torch::Tensor augmented(const torch::Tensor& images, std::span<const std::int64_t> samples,
                        const task::Draws& draws);

}  // namespace bimetal::data
