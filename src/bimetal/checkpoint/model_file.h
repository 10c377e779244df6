#pragma once
// A model's parameters and buffers as a safetensors file, under their libtorch names.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "bimetal/checkpoint/safetensors.h"
#include "bimetal/models/language/language_model.h"
#include "bimetal/task/task.h"
#include "bimetal/task/unit.h"

namespace bimetal::checkpoint {

// The model in a checkpoint, and its inputs, so that it can be used without its job.

struct ModelDescription {
  /// As models::make_model takes it, or a language model's, or "module:function" of one in Python.
  std::string name;
  std::int64_t hidden = 0;      ///< likewise
  std::int64_t norm_group = 0;  ///< likewise
  std::int64_t channels = 1, height = 28, width = 28, classes = 10;
  std::string dtype = "float32";  ///< that it was trained in: "float32" or "float64"
  /// Pixels x become (x/255 − mean) ÷ stddev: one number for each channel, or one for all.
  std::vector<double> mean = {0}, stddev = {1};
  /// For a language model, for which the numbers of images say nothing.
  std::optional<models::LanguageModelConfig> language = {};
  bool in_python() const noexcept { return name.find(':') != std::string::npos; }
  bool operator==(const ModelDescription&) const = default;
};

/// The note for a user whose run goes on from a model of images that were normalised otherwise.
std::optional<std::string> other_normalisation(const std::optional<ModelDescription>& before,
                                               const ModelDescription& now);

/// Such a model on the CPU in float32, drawn from torch's default generator. `made`: told of each
/// unit of a language model, before the next one is drawn, and of others' once they are there.
/// Errors of models::make_model or models::make_language_model.
task::Model draw_described_model(
    const ModelDescription& description, const task::UnitMade& made = [](const task::Unit&) {});

/// Such a model on the CPU in its own type, in evaluation mode. Its parameters are drawn, but
/// torch's default generator is left as it was. Errors likewise.
task::Model make_described_model(const ModelDescription& description);

/// Atomic: `path` holds the old or the new model, never a part. Errors of write_safetensors.
void save_model(const task::ModelState& model, const std::filesystem::path& path);

/// Checks all names, shapes and types before anything is changed. A tensor that the file has under
/// several names of its own is taken by its first. Error(CorruptData) for a damaged
/// file, Error(InvalidArgument) naming the first difference for another model's.
void load_model(const task::ModelState& model, const std::filesystem::path& path);

/// The parameters and buffers themselves, not copies.
TensorMap model_tensors(const task::ModelState& model);

/// The tensors in the file, without the further names of tensors that the model has under several.
TensorMap stored_tensors(const std::filesystem::path& path, const task::ModelState& model);

/// Error(InvalidArgument), naming the first difference, unless both have the same names, shapes and
/// types. `origin` names the source of the stored ones.
void require_same_tensors(const TensorMap& stored, const TensorMap& wanted,
                          const std::string& origin);

/// Overwrites the values of `to`'s tensors, wherever they lie. Same names, shapes and types.
void copy_values(const TensorMap& from, const TensorMap& to);

}  // namespace bimetal::checkpoint
