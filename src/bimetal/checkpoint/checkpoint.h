#pragma once
// Checkpoints: a folder `step-00001234/` with model.safetensors, optimizer.safetensors,
// error_feedback.safetensors where gradients are compressed, and state.json, written beside its
// final place and renamed into it; state.json holds each file's size and SHA-256. Or, of ranks that
// keep shards, with a file of each rank's in place of the first two (slices/save_slices.h): all
// that is read here reads both. Nothing of a checkpoint is ever executed (no pickle). Layout:
// docs/checkpoints.md.

#include <torch/csrc/api/include/torch/optim/optimizer.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bimetal/checkpoint/model_file.h"
#include "bimetal/checkpoint/safetensors.h"
#include "bimetal/comm/compress/compressed_all_reduce.h"
#include "bimetal/comm/group.h"
#include "bimetal/data/sampler.h"
#include "bimetal/job/job_config.h"
#include "bimetal/precision/loss_scaler.h"
#include "bimetal/task/task.h"

namespace bimetal::checkpoint {

/// The state that a job needs beside parameters to go on as if it had not stopped.
struct TrainingState {
  std::int64_t step = 0;
  data::SamplerPosition position = {};
  std::uint64_t seed = 0;
  std::int64_t global_batch = 0;
  std::vector<std::int64_t> shares = {};
  std::vector<std::uint8_t> torch_rng = {};  ///< state of the default CPU generator
  /// Grows with each job that begins with a folder of checkpoints, and with each process that goes
  /// on with such a job in the place of another: the later one has the higher term.
  std::uint64_t term = 0;
  /// For compressed gradients: parallel::ReplicatedModel::error_feedback().
  std::vector<comm::NamedValues> error_feedback = {};
  /// Present if a worker computed in float16.
  std::optional<precision::LossScalerState> loss_scaler = {};
  /// None in checkpoints of models that are no job's.
  std::optional<ModelDescription> model = {};
  bool operator==(const TrainingState&) const = default;
};

/// The checkpoint that was last saved into a folder; sequence 0: there is none.
struct LastSave {
  std::filesystem::path path = {};
  std::uint64_t sequence = 0, term = 0;
  std::int64_t step = 0;
};
LastSave last_save(const std::filesystem::path& dir);

/// Gets the folder's newest checkpoint, where another process may save, too. Meanwhile no other
/// process can add one, as far as the file system has locks. The process that comes second is asked
/// again whether its checkpoint is still wanted. Throws if no checkpoint may be put beside the
/// newest.
using AdmitSave = std::function<void(const LastSave& newest)>;

/// Saves and, once the new one is in place, removes all but the `keep` (at least 1) saved last.
/// Returns its folder; one of the same step is replaced. On any error (disk full included) the
/// temporary folder is removed, older checkpoints are untouched, and Error(System) names the path
/// and the cause. A process killed meanwhile leaves older checkpoints untouched, too; the next save
/// clears its temporary folder away. Error(Unsupported) for optimizers other than SGD, Adam, AdamW,
/// LARS and LAMB. An exception from `admit` is thrown on, with older checkpoints untouched.
/// Error(Timeout) if another process does not get on with a save of its own.
std::filesystem::path save_checkpoint(const std::filesystem::path& dir,
                                      const task::ModelState& model,
                                      const torch::optim::Optimizer& optimizer,
                                      const TrainingState& state, std::int64_t keep,
                                      const AdmitSave& admit = {});

/// `path` is a checkpoint or a folder of them (the last saved that verifies is taken; damaged ones
/// are skipped with a log message, but not those that the system does not let us read just now:
/// Error(System)). Checks sizes, checksums, names, shapes and types before
/// anything is changed. The optimizer keeps its own hyper-parameters; what differs from the
/// checkpoint's is logged. Errors: CorruptData, InvalidArgument (nothing there; another model,
/// naming the first difference; another kind of optimizer).
TrainingState load_checkpoint(const std::filesystem::path& path, const task::ModelState& model,
                              torch::optim::Optimizer& optimizer);

/// The model alone of such a checkpoint, whatever optimizer it was trained with; returns the folder
/// that it came from. The same checks and errors.
std::filesystem::path load_checkpoint_model(const std::filesystem::path& path,
                                            const task::ModelState& model);

/// The origin of weights, and the number of their tensors.
struct SavedWeights {
  std::filesystem::path path;  ///< the checkpoint
  std::size_t tensors = 0;
};

/// Writes the parameters and buffers of a checkpoint, or of the last saved of a folder of them,
/// into a safetensors file, for any model. It takes one tensor after the other, so that there is
/// never more than one in memory. Errors of load_checkpoint, but those of another model, and of
/// write_safetensors.
SavedWeights write_saved_weights(const std::filesystem::path& path,
                                 const std::filesystem::path& file);

/// The same of all that a checkpoint holds: `folder`, which must not be there or be empty, becomes
/// one of whole tensors, as jobs save that have no shards. It appears whole. Returns the checkpoint
/// that it is made of. Errors likewise; InvalidArgument if something lies in `folder`.
std::filesystem::path consolidate_checkpoint(const std::filesystem::path& path,
                                             const std::filesystem::path& folder);

/// A trained model, for programs without its job.
struct SavedModel {
  std::filesystem::path path;  ///< the checkpoint
  std::uint64_t sequence = 0;  ///< its place among the saves into its folder
  std::int64_t step = 0;
  ModelDescription description;
  task::Model model;  ///< on the CPU, in evaluation mode
};

/// The description of its model that the checkpoint in `path` has. Error(Unsupported) if it has
/// none.
ModelDescription description_in(const TrainingState& state, const std::filesystem::path& path);

/// Error(InvalidArgument) if `path` holds another model.
void require_language_model(const ModelDescription& description, const std::filesystem::path& path);

/// The model of a checkpoint, or of the last saved of a folder of them. Errors of load_checkpoint;
/// Unsupported for a checkpoint that does not say which model it holds.
SavedModel load_saved_model(const std::filesystem::path& path);

// Checkpoints of a job of many ranks: rank 0 alone touches the files, so that the folder may be on
// its machine only.

/// Deadline of what waits for rank 0's disk. Generous: a lost rank is found by its heartbeat, and a
/// stuck one by comm::do_watched.
inline constexpr std::chrono::minutes kFileTimeout{10};

/// Saves on rank 0 and returns on every rank once the checkpoint is in place; the path is rank 0's.
/// Collective. Errors of train::save_checkpoint on rank 0 alone, which must then end the group.
std::filesystem::path save_shared_checkpoint(comm::Group group, const job::CheckpointConfig& config,
                                             const task::ModelState& model,
                                             const torch::optim::Optimizer& optimizer,
                                             const TrainingState& state);

/// Loads the checkpoint that rank 0's `path` names, and gives state and optimizer to every rank
/// (the parameters follow with parallel::ReplicatedModel's first broadcast); others' `path` is
/// ignored. Nothing if rank 0 has none. Collective. Errors of load_checkpoint, of rank 0 and on
/// every rank; Error(CorruptData) on a rank that is sent nonsense.
std::optional<TrainingState> load_shared_checkpoint(
    comm::Group group, const std::optional<std::filesystem::path>& path,
    const task::ModelState& model, torch::optim::Optimizer& optimizer);

/// Error(NotFinite), on every rank, if any rank's parameters hold a NaN or an infinity: such a
/// state must not replace the last good checkpoint. Collective.
void require_finite_parameters(comm::Group group, const task::ModelState& model, std::int64_t step,
                               std::chrono::milliseconds timeout);

}  // namespace bimetal::checkpoint
