#pragma once
// A folder of checkpoints: which there are, in the order in which they were saved, and the next
// one. Private to what saves and loads checkpoints.
//
// The best checkpoint of a run, beside the newest ones: DIR/best, which is a folder of checkpoints
// that has one.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string_view>
#include <vector>

#include "bimetal/base/error.h"
#include "bimetal/base/files.h"
#include "bimetal/checkpoint/checkpoint.h"
#include "bimetal/checkpoint/checkpoint_manifest.h"
#include "bimetal/checkpoint/optimizer_state.h"
#include "bimetal/checkpoint/safetensors.h"
#include "bimetal/progress/metrics.h"
#include "bimetal/progress/report.h"
#include "bimetal/task/task.h"

namespace bimetal::checkpoint {

/// Sequence 0: its state.json tells nothing, being damaged or of a later format.
using CheckpointEntry = LastSave;

/// Where the checkpoint of a step lies: dir/step-00001234.
std::filesystem::path checkpoint_path(const std::filesystem::path& dir, std::int64_t step);

/// Removes the files of unfinished checkpoints, of any step, that killed processes left in `dir`.
/// Never throws.
void remove_checkpoint_leftovers(const std::filesystem::path& dir) noexcept;

/// Renamed first, so that a process killed meanwhile leaves a leftover and not half a checkpoint.
void remove_checkpoint(const std::filesystem::path& path);

/// The last saved first; those without a sequence come last. Empty if there is no such folder.
/// Error(System) if the folder or a state.json cannot be read just now: the order is not known
/// then.
std::vector<CheckpointEntry> list_checkpoints(const std::filesystem::path& dir);

/// Removes all but the `keep` saved last. Those without a sequence are left alone: they may be
/// somebody else's. Never throws; a failure to remove one is logged.
void prune_checkpoints(const std::filesystem::path& dir, std::int64_t keep) noexcept;

/// A checkpoint that is being written: a hidden folder of a random name, which goes unless it is
/// put into place.
class NewCheckpoint {
 public:
  /// Makes `dir`, and removes what killed processes left in it. Error(System) names the path;
  /// Error(InvalidArgument) unless keep > 0.
  NewCheckpoint(const std::filesystem::path& dir, std::int64_t step, std::int64_t keep);

  /// Makes a checkpoint of exactly that name. One of the same name is replaced, and nothing else is
  /// removed. Leftovers of killed processes stay, too, since the only whole copy may be among them.
  /// Error(InvalidArgument) if anything but a checkpoint or an empty folder is there.
  explicit NewCheckpoint(const std::filesystem::path& target);

  const std::filesystem::path& folder() const noexcept { return folder_.path(); }
  const std::filesystem::path& target() const noexcept { return folder_.target(); }

  /// Writes state.json with the next sequence of `dir`, moves all into place and removes older
  /// checkpoints (of the first constructor's). The other files must be there, and on the disk. One
  /// process at a time does so in `dir`, where its file system has locks: `admit` sees the very
  /// save that this one follows. Error(Timeout) if another process does not get on with it.
  void commit(Manifest manifest, const AdmitSave& admit = {});

  /// The same error with the name of the tensor that cannot be saved.
  Error explained(const Error& error) const;

 private:
  std::filesystem::path dir_;
  std::int64_t keep_;  ///< 0: all
  TemporaryPath folder_;
};

// For callers that name a new folder.

/// The absolute path of `folder`, for a TemporaryPath; its parent folders are made.
/// Error(InvalidArgument) if something lies in `folder`, or it is none.
std::filesystem::path place_of_new_folder(const std::filesystem::path& folder);

// The contents of a checkpoint of a whole model. They are copies, so that it can be written beside
// the training.

struct CheckpointContents {
  TensorMap model = {}, optimizer = {};
  OptimizerFacts optimizer_facts = {};
  TrainingState state = {};
};

/// The tensors themselves, not copies. Error(Unsupported) as save_checkpoint().
CheckpointContents contents_of(const task::ModelState& model,
                               const torch::optim::Optimizer& optimizer,
                               const TrainingState& state);

/// As save_checkpoint().
std::filesystem::path save_contents(const std::filesystem::path& dir,
                                    const CheckpointContents& contents, std::int64_t keep,
                                    const AdmitSave& admit = {});

/// The name of the best checkpoint's folder, in a folder of checkpoints.
inline constexpr std::string_view kBestFolder = "best";

/// Whether `a` is better. The task's first metric decides if it is a part of a whole (an accuracy),
/// and the loss between equal ones. Otherwise the loss decides. False if the figures of `a` are not
/// finite.
bool is_better(const progress::Evaluation& a, const progress::Evaluation& b);

/// Rank 0's. Use from one thread.
class BestCheckpoint {
 public:
  /// `dir`: of the job's checkpoints; empty: only the figures are kept. A run that goes on from a
  /// step above 0 goes on with the best one that DIR/best has of the steps up to there.
  BestCheckpoint(std::filesystem::path dir, std::int64_t start_step);

  /// If this is the best evaluation so far, `checkpoint`, which must be of this step, becomes
  /// DIR/best's: its files by further names of theirs, or copied where the file system knows none.
  /// An empty path: there is none. Error(System) names what could not be written.
  void offer(const std::filesystem::path& checkpoint, std::int64_t step,
             const progress::Evaluation& evaluation);

  /// None before the first offer with finite figures.
  const std::optional<progress::BestReport>& best() const noexcept { return best_; }

 private:
  void keep(const std::filesystem::path& checkpoint);

  std::filesystem::path folder_;
  std::optional<progress::BestReport> best_;
};

}  // namespace bimetal::checkpoint
