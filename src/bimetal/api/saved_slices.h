#pragma once
// Checkpoints of which each rank of a program's own loop gives and takes what it keeps of a model.
// Private to api.

#include <torch/csrc/api/include/torch/optim/optimizer.h>
#include <torch/csrc/api/include/torch/types.h>

#include <chrono>
#include <filesystem>
#include <functional>
#include <optional>
#include <vector>

#include "bimetal/checkpoint/checkpoint.h"
#include "bimetal/comm/group.h"
#include "bimetal/task/task.h"
#include "bimetal/train/piece_states.h"

namespace bimetal::api {

/// What a rank keeps of a model.
struct KeptOfModel {
  task::ModelState model = {};                  ///< the whole one: of others' parts names and sizes
  std::vector<task::NamedTensor> trained = {};  ///< of it
  train::KeptPieces pieces = {};
  task::ModelState uncut = {};  ///< what is here and in no pieces
  /// Whether this rank gives a piece, of several that have the same; and what is uncut.
  std::function<bool(const train::KeptPiece& piece)> gives;
  bool gives_uncut = true;
  std::function<void()> looked_at = [] {};  ///< after each piece
};

/// Each rank writes what it gives into rank 0's folder. Collective. Errors: save_slices'.
std::filesystem::path save_kept(const comm::Group& group, const job::CheckpointConfig& config,
                                const KeptOfModel& kept, const torch::optim::Optimizer& optimizer,
                                checkpoint::TrainingState state, std::chrono::milliseconds timeout);

/// Each rank reads what it keeps of the checkpoint that rank 0's `from` names. Collective. Errors:
/// those of checkpoint::load_checkpoint.
checkpoint::TrainingState take_kept(const comm::Group& group, const std::filesystem::path& from,
                                    const KeptOfModel& kept, torch::optim::Optimizer& optimizer);

/// Folder `dir` of rank 0, if it holds a checkpoint there. Collective.
std::optional<std::filesystem::path> checkpoints_in(const comm::Group& group,
                                                    const std::filesystem::path& dir);

/// As TrainingState::term has it, of a job that saves into `dir`. The same on all ranks;
/// collective.
std::uint64_t next_term(const comm::Group& group, const std::filesystem::path& dir);

/// A safetensors file, which rank 0 writes. Collective; its errors on every rank.
void save_on_rank_0(const comm::Group& group, const task::ModelState& model,
                    const std::filesystem::path& path);

}  // namespace bimetal::api
