#pragma once
// A model's parameters and buffers as a safetensors file, under their libtorch names.

#include <torch/csrc/api/include/torch/nn/module.h>

#include <filesystem>
#include <string>

#include "bimetal/train/safetensors.h"

namespace bimetal::train {

/// Atomic: `path` holds the old or the new model, never a part. Errors of write_safetensors.
void save_model(const torch::nn::Module& module, const std::filesystem::path& path);

/// Checks all names, shapes and types before anything is changed. Error(CorruptData) for a damaged
/// file, Error(InvalidArgument) naming the first difference for another model's.
void load_model(torch::nn::Module& module, const std::filesystem::path& path);

/// The parameters and buffers themselves, not copies.
TensorMap model_tensors(const torch::nn::Module& module);

/// Error(InvalidArgument), naming the first difference, unless both have the same names, shapes and
/// types. `origin` is what the stored ones came from.
void require_same_tensors(const TensorMap& stored, const TensorMap& wanted,
                          const std::string& origin);

/// Overwrites the values of `to`'s tensors, wherever they lie. Same names, shapes and types.
void copy_values(const TensorMap& from, const TensorMap& to);

}  // namespace bimetal::train
