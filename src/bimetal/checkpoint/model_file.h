#pragma once
// A model's parameters and buffers as a safetensors file, under their libtorch names.

#include <filesystem>
#include <string>

#include "bimetal/checkpoint/safetensors.h"
#include "bimetal/task/model_state.h"

namespace bimetal::checkpoint {

/// Atomic: `path` holds the old or the new model, never a part. Errors of write_safetensors.
void save_model(const task::ModelState& model, const std::filesystem::path& path);

/// Checks all names, shapes and types before anything is changed. A tensor that the file has under
/// several names of its own is taken by its first. Error(CorruptData) for a damaged
/// file, Error(InvalidArgument) naming the first difference for another model's.
void load_model(const task::ModelState& model, const std::filesystem::path& path);

/// The parameters and buffers themselves, not copies.
TensorMap model_tensors(const task::ModelState& model);

/// What the file holds, but for further names of tensors that the model has under several.
TensorMap stored_tensors(const std::filesystem::path& path, const task::ModelState& model);

/// Error(InvalidArgument), naming the first difference, unless both have the same names, shapes and
/// types. `origin` is what the stored ones came from.
void require_same_tensors(const TensorMap& stored, const TensorMap& wanted,
                          const std::string& origin);

/// Overwrites the values of `to`'s tensors, wherever they lie. Same names, shapes and types.
void copy_values(const TensorMap& from, const TensorMap& to);

}  // namespace bimetal::checkpoint
