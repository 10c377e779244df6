#pragma once
// The IDX format of MNIST and its kin, plain or gzipped.

#include <torch/csrc/api/include/torch/types.h>

#include <filesystem>
#include <span>

#include "bimetal/data/images/dataset.h"

namespace bimetal::data {

/// Reads an IDX file of unsigned bytes; the shape is the file's own. Errors: System if it can't be
/// opened; CorruptData for a wrong magic, an unsupported element type, a truncated or overlong
/// file, or dimensions that don't fit the data, each naming the file and what was found.
torch::Tensor read_idx(const std::filesystem::path& path);

// The binary format of CIFAR-10 (Krizhevsky 2009, "Learning multiple layers of features from tiny
// images"), plain or gzipped.

/// The images of all files, in their order: uint8 [N, 3, 32, 32], red, green, blue; not yet with
/// their mean and deviation. Each file is records of one byte of label, 0 … 9, and 3072 of pixels.
/// Errors name the file: System if it can't be opened; CorruptData for one of no whole number of
/// records, or with another label.
ImageDataset read_cifar10(std::span<const std::filesystem::path> files);

}  // namespace bimetal::data
