#pragma once
// How images lie on disk: the IDX format of MNIST and its kin, plain or gzipped; CIFAR-10; files in
// folders.

#include <torch/csrc/api/include/torch/types.h>

#include <cstdint>
#include <filesystem>
#include <span>

#include "bimetal/data/images/dataset.h"

namespace bimetal::data {

/// Reads an IDX file of unsigned bytes; the shape is the file's own. Errors: System if it can't be
/// opened; CorruptData for a wrong magic, an unsupported element type, a truncated or overlong
/// file, or dimensions that don't fit the data, each naming the file and the value found.
torch::Tensor read_idx(const std::filesystem::path& path);

// The binary format of CIFAR-10 (Krizhevsky 2009, "Learning multiple layers of features from tiny
// images"), plain or gzipped.

/// The images of all files, in their order: uint8 [N, 3, 32, 32], red, green, blue; not yet with
/// their mean and deviation. Each file is records of one byte of label, 0 … 9, and 3072 of pixels.
/// Errors name the file: System if it can't be opened; CorruptData for one of no whole number of
/// records, or with another label.
ImageDataset read_cifar10(std::span<const std::filesystem::path> files);

// Images in folders, one for each class.

/// Most bytes of decoded images that are held in memory.
inline constexpr std::int64_t kMostImageBytes = std::int64_t{32} << 30;

/// `folder`/train/<class>/… and `folder`/test/<class>/…: all files called *.jpg, *.jpeg or *.png,
/// whatever their case, in the order of their names, each decoded once and made square
/// (read_image); others are left alone. Classes are the folders of train/ in the order of their
/// names. Not yet with their mean and deviation. Errors: CorruptData for a file that is no sound
/// image, named with how many there are more, unless options.skip_broken; InvalidArgument for a
/// folder without images, a class that train/ lacks, and for more than kMostImageBytes.
TrainTest read_image_folders(const std::filesystem::path& folder, const LoadOptions& options);

// JPEG and PNG files as pixels.

/// uint8 [3, H, W], red, green, blue; grey images have three equal channels, transparent pixels are
/// put on black. The first bytes tell the format. A camera's note of its orientation is ignored.
/// Error(CorruptData) names the file and its fault: neither format, damaged, cut off, or of more
/// than 2²⁸ pixels; Error(System) where it cannot be read; Error(Unsupported) in builds without
/// libjpeg and libpng.
torch::Tensor read_image(const std::filesystem::path& file);

/// `image` with its short side resized to `size` (bilinear, smoothed where it gets smaller), and of
/// that the middle: uint8 [3, size, size].
torch::Tensor middle_square(const torch::Tensor& image, std::int64_t size);

}  // namespace bimetal::data
