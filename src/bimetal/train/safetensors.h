#pragma once
// The safetensors file format: u64 header length, JSON header, raw little-endian tensor data.
// Format: https://github.com/huggingface/safetensors (README, "Format").

#include <torch/csrc/api/include/torch/types.h>

#include <filesystem>
#include <map>
#include <string>

namespace bimetal::train {

using TensorMap = std::map<std::string, torch::Tensor>;

/// Tensors are copied to the CPU and made contiguous as needed. fsync'd. Error(System) on failure.
void write_safetensors(const std::filesystem::path& path, const TensorMap& tensors);

/// Validates header length, offsets, shapes and types against the file before allocating.
/// Error(CorruptData) names the file and the flaw.
TensorMap read_safetensors(const std::filesystem::path& path);

}  // namespace bimetal::train
