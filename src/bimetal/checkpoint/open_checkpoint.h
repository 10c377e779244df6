#pragma once
// A checkpoint that is read: whole tensors or any slices of them, whatever it was saved in.
// Private to what loads checkpoints.

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "bimetal/checkpoint/checkpoint_manifest.h"
#include "bimetal/checkpoint/optimizer_state.h"
#include "bimetal/checkpoint/slices/slice_file.h"

namespace bimetal::checkpoint {

/// Use from one thread.
class OpenCheckpoint {
 public:
  /// One that has been verified.
  OpenCheckpoint(std::filesystem::path path, Manifest manifest);

  const std::filesystem::path& path() const noexcept { return path_; }
  const Manifest& manifest() const noexcept { return manifest_; }
  const SliceIndex& index() const noexcept { return index_; }

  /// What messages call the place of its tensors.
  std::string model_origin() const;
  std::string optimizer_origin() const;

  /// Of a tensor that index() has: `wanted`, in its own shape, on the CPU. Errors:
  /// read_safetensors'.
  torch::Tensor read(const std::string& name, const StoredTensor& tensor, const Slice& wanted);
  /// The whole of it.
  torch::Tensor read(const std::string& name, const StoredTensor& tensor);
  /// Of compressed gradients, where there is any.
  std::vector<comm::NamedValues> error_feedback() const;
  /// The whole of all.
  TensorMap read_all(const TensorIndex& index);

 private:
  SafetensorsFile& file(const std::string& name);

  std::filesystem::path path_;
  Manifest manifest_;
  std::map<std::string, SafetensorsFile> files_;  ///< that have been read from
  SliceIndex index_;
};

/// `path` is a checkpoint or a folder of them (the last saved that verifies is taken; damaged ones
/// are skipped with a log message). Errors: checkpoint.h.
OpenCheckpoint find_checkpoint(const std::filesystem::path& path);

/// What it holds of `model`, but for further names of its tensors. Error(InvalidArgument) names the
/// first difference where it holds another model.
TensorIndex require_same_model(const OpenCheckpoint& checkpoint, const task::ModelState& model);

/// Error(InvalidArgument) if it was saved with another kind of optimizer.
void require_same_kind(const OpenCheckpoint& checkpoint, const OptimizerFacts& mine);

/// Other hyper-parameters than its own are allowed.
void log_changed_settings(const OpenCheckpoint& checkpoint, const OptimizerFacts& mine);

}  // namespace bimetal::checkpoint
