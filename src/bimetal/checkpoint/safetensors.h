#pragma once
// The safetensors file format: u64 header length, JSON header, raw little-endian tensor data. Files
// and what processes send each other of a training's state are alike: data, nothing to execute.
// Format: https://github.com/huggingface/safetensors (README, "Format").

#include <torch/csrc/api/include/torch/types.h>

#include <cstddef>
#include <filesystem>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "bimetal/checkpoint/safetensors_header.h"

namespace bimetal::checkpoint {

using TensorMap = std::map<std::string, torch::Tensor>;

/// Strided tensors of float64/32/16, bfloat16, int64/32/16/8, uint8 and bool; they are copied to
/// the CPU and made contiguous as needed. Equal tensors give equal files. Atomic and on the disk
/// when it returns. Error(System) on failure, Error(InvalidArgument) for tensors or names that the
/// format cannot hold.
void write_safetensors(const std::filesystem::path& path, const TensorMap& tensors);

/// The same for tensors that need not be there all at once: each of `entries` (of which name, type
/// and shape count) is asked for when its turn has come.
using TensorOf = std::function<torch::Tensor(const std::string& name)>;
void write_safetensors(const std::filesystem::path& path, std::vector<TensorEntry> entries,
                       const TensorOf& tensor_of);

/// Error(InvalidArgument) for tensors that the format cannot hold.
void require_storable(const std::string& name, const torch::Tensor& tensor);

/// The bytes of such a file, from its first to its last, for whatever `write` does with them.
using WriteBytes = std::function<void(std::span<const std::byte>)>;
void encode_safetensors(const TensorMap& tensors, const WriteBytes& write);
void encode_safetensors(std::vector<TensorEntry> entries, const TensorOf& tensor_of,
                        const WriteBytes& write);

/// Validates header length, offsets, shapes and types against the file before allocating. The
/// tensors are on the CPU. Error(System) if it cannot be opened; Error(CorruptData) names the file
/// and the flaw.
TensorMap read_safetensors(const std::filesystem::path& path);

/// The bytes of such a file, without one. Error(InvalidArgument) as above.
std::vector<std::byte> encode_safetensors(const TensorMap& tensors);

/// The way back, with the same checks. Error(CorruptData) names `origin` and the flaw.
TensorMap decode_safetensors(std::span<const std::byte> bytes, const std::string& origin);

}  // namespace bimetal::checkpoint
