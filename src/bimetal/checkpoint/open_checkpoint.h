#pragma once
// A checkpoint that is read: whole tensors or any slices of them, whatever it was saved in.
// Private to what loads checkpoints.
//
// Describes checkpoints for people, from their state.json, without loading anything.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "bimetal/checkpoint/checkpoint.h"
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

  /// The name of its tensors' place in messages.
  std::string model_origin() const;
  std::string optimizer_origin() const;

  /// The slice `wanted` of a tensor that index() has, in the slice's shape, on the CPU. Errors:
  /// read_safetensors'.
  torch::Tensor read(const std::string& name, const StoredTensor& tensor, const Slice& wanted);
  /// The whole of it.
  torch::Tensor read(const std::string& name, const StoredTensor& tensor);
  /// The error feedback of compressed gradients, if there is any.
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

/// The tensors that it holds of `model`, without further names of the same tensor.
/// Error(InvalidArgument) names the first difference if it holds another model.
TensorIndex require_same_model(const OpenCheckpoint& checkpoint, const task::ModelState& model);

/// Error(InvalidArgument) if it was saved with another kind of optimizer.
void require_same_kind(const OpenCheckpoint& checkpoint, const OptimizerFacts& mine);

/// Other hyper-parameters than its own are allowed.
void log_changed_settings(const OpenCheckpoint& checkpoint, const OptimizerFacts& mine);

struct InspectedFile {
  std::string name;
  std::uint64_t bytes = 0;
  std::size_t tensors = 0;  ///< or slices of them; 0: not known
  std::string flaw = {};    ///< empty: it is as it was written
};

struct Inspected {
  std::filesystem::path path;
  std::string flaw = {};  ///< of state.json, where nothing else is known
  std::uint64_t sequence = 0;
  TrainingState state = {};
  std::string optimizer = {};
  bool of_loop = false;       ///< in Python, which may count its steps itself
  int ranks = 0;              ///< that have written slices; 0: of whole tensors
  std::size_t tensors = 0;    ///< parameters and buffers
  std::int64_t elements = 0;  ///< of these
  std::vector<InspectedFile> files = {};

  bool intact() const noexcept;
};

/// A checkpoint, or all of a folder, the last saved first. Reads every byte, to compare checksums.
/// Damage is part of the findings, and so is a file that cannot be read. Errors: InvalidArgument if
/// there is none; System if the folder cannot be read.
std::vector<Inspected> inspect_checkpoints(const std::filesystem::path& path);

}  // namespace bimetal::checkpoint
