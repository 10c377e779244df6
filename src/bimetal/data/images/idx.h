#pragma once
// The IDX format of MNIST and its kin, plain or gzipped.

#include <torch/csrc/api/include/torch/types.h>

#include <filesystem>

namespace bimetal::data {

/// Reads an IDX file of unsigned bytes; the shape is the file's own. Errors: System if it can't be
/// opened; CorruptData for a wrong magic, an unsupported element type, a truncated or overlong
/// file, or dimensions that don't fit the data, each naming the file and what was found.
torch::Tensor read_idx(const std::filesystem::path& path);

}  // namespace bimetal::data
