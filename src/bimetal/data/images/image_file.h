#pragma once
// JPEG and PNG files as pixels.

#include <torch/csrc/api/include/torch/types.h>

#include <cstdint>
#include <filesystem>

namespace bimetal::data {

/// uint8 [3, H, W], red, green, blue; grey images have three equal channels, what is transparent
/// is put on black. The format is told by the first bytes. What a camera notes of its orientation
/// is not looked at. Error(CorruptData) names the file and what is wrong with it: neither format,
/// damaged, cut off, or of more than 2²⁸ pixels; Error(System) where it cannot be read;
/// Error(Unsupported) in builds without libjpeg and libpng.
torch::Tensor read_image(const std::filesystem::path& file);

/// `image` with its short side resized to `size` (bilinear, smoothed where it gets smaller), and of
/// that the middle: uint8 [3, size, size].
torch::Tensor middle_square(const torch::Tensor& image, std::int64_t size);

}  // namespace bimetal::data
