#include "bimetal/checkpoint/checkpoint.h"

#include <fmt/format.h>
#include <torch/torch.h>

#include <system_error>

#include "bimetal/base/atomic_file.h"
#include "bimetal/base/error.h"
#include "bimetal/base/log.h"
#include "bimetal/base/temporary_path.h"
#include "bimetal/checkpoint/checkpoint_folder.h"
#include "bimetal/checkpoint/checkpoint_manifest.h"
#include "bimetal/checkpoint/feedback_tensors.h"
#include "bimetal/checkpoint/model_file.h"
#include "bimetal/checkpoint/optimizer_state.h"
#include "bimetal/checkpoint/safetensors.h"

namespace bimetal::checkpoint {
namespace {

namespace fs = std::filesystem;
using torch::optim::Optimizer;

void make_folder(const fs::path& dir) {
  std::error_code error;
  fs::create_directories(dir, error);
  if (error) throw system_error("cannot make the checkpoint folder " + dir.string(), error.value());
}

std::uint64_t next_sequence(const fs::path& dir) {
  return last_save(dir).sequence + 1;
}

void write_contents(const fs::path& folder, const task::ModelState& model,
                    const Optimizer& optimizer, const TrainingState& state,
                    std::uint64_t sequence) {
  write_safetensors(folder / kModelFile, model_tensors(model));
  write_safetensors(folder / kOptimizerFile, optimizer_tensors(optimizer, model));
  if (!state.error_feedback.empty()) {
    write_safetensors(folder / kFeedbackFile, feedback_tensors(state));
  }
  const Manifest manifest{.sequence = sequence,
                          .state = state,
                          .optimizer = optimizer_kind(optimizer),
                          .optimizer_groups = optimizer_settings(optimizer),
                          .files = record_files(folder)};
  write_file_atomically(folder / kStateFile, manifest_text(manifest));
}

/// A checkpoint that verified: nothing in it can fail any more but to fit.
struct Intact {
  fs::path path;
  Manifest manifest;
};

Intact verify(const fs::path& path) {
  Intact intact{path, read_manifest(path)};
  verify_files(intact.manifest, path);
  return intact;
}

Intact newest_intact(const fs::path& dir) try {
  const auto found = list_checkpoints(dir);
  if (found.empty()) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("there is no checkpoint in {}", dir.string()));
  }
  std::string first_flaw;
  for (const CheckpointEntry& entry : found) {
    try {
      return verify(entry.path);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::CorruptData) throw;
      log(LogLevel::warning, "skipping the checkpoint {}: {}", entry.path.string(), error.what());
      if (first_flaw.empty()) first_flaw = error.what();
    }
  }
  throw Error(ErrorCode::CorruptData,
              fmt::format("no checkpoint in {} is intact: {}", dir.string(), first_flaw));
} catch (const Error& error) {
  if (error.code() != ErrorCode::System) throw;
  throw Error(ErrorCode::System,
              fmt::format("{}. That is no damage, so that no older checkpoint is taken in place of "
                          "one that may be whole: mend it, or name the checkpoint to go on from",
                          error.what()));
}

Intact find_checkpoint(const fs::path& path) {
  std::error_code error;
  const bool is_one = fs::exists(path / kStateFile, error);
  if (error) throw system_error("cannot read " + path.string(), error.value());
  return is_one ? verify(path) : newest_intact(path);
}

void require_same_kind(const Intact& checkpoint, const Optimizer& optimizer) {
  const auto kind = optimizer_kind(optimizer);
  if (checkpoint.manifest.optimizer == kind) return;
  throw Error(ErrorCode::InvalidArgument,
              fmt::format("{} was saved with the optimizer '{}', this job uses '{}'",
                          checkpoint.path.string(), checkpoint.manifest.optimizer, kind));
}

void log_changed_settings(const Intact& checkpoint, const Optimizer& optimizer) {
  const auto mine = optimizer_settings(optimizer);
  if (checkpoint.manifest.optimizer_groups == mine) return;
  log(LogLevel::info, "{} was saved with the hyper-parameters {}; this job goes on with {}",
      checkpoint.path.string(), checkpoint.manifest.optimizer_groups.dump(), mine.dump());
}

}  // namespace

fs::path save_checkpoint(const fs::path& dir, const task::ModelState& model,
                         const Optimizer& optimizer, const TrainingState& state,
                         std::int64_t keep) {
  if (keep < 1) throw Error(ErrorCode::InvalidArgument, "at least one checkpoint must be kept");
  make_folder(dir);
  remove_leftovers(dir, "step-");
  TemporaryPath folder(checkpoint_path(dir, state.step), TemporaryPath::Kind::folder);
  try {
    write_contents(folder.path(), model, optimizer, state, next_sequence(dir));
    folder.move_into_place();
  } catch (const Error& error) {
    throw Error(error.code(), fmt::format("cannot save the checkpoint {}: {}",
                                          folder.target().string(), error.what()));
  }
  prune_checkpoints(dir, keep);
  return folder.target();
}

TrainingState load_checkpoint(const fs::path& path, const task::ModelState& model,
                              Optimizer& optimizer) {
  const Intact checkpoint = find_checkpoint(path);
  require_same_kind(checkpoint, optimizer);
  const auto model_file = checkpoint.path / kModelFile,
             optimizer_file = checkpoint.path / kOptimizerFile;
  const auto stored = stored_tensors(model_file, model);
  const auto own = model_tensors(model);
  require_same_tensors(stored, own, model_file.string());
  auto states =
      optimizer_states(read_safetensors(optimizer_file), optimizer, model, optimizer_file.string());
  auto state = checkpoint.manifest.state;
  if (checkpoint.manifest.files.contains(kFeedbackFile)) {
    state.error_feedback = feedback_values(read_safetensors(checkpoint.path / kFeedbackFile));
  }
  log_changed_settings(checkpoint, optimizer);
  copy_values(stored, own);  // from here on nothing can be refused any more
  optimizer.state() = std::move(states);
  return state;
}

fs::path load_checkpoint_model(const fs::path& path, const task::ModelState& model) {
  auto checkpoint = find_checkpoint(path).path;
  load_model(model, checkpoint / kModelFile);
  return checkpoint;
}

SavedWeights load_saved_weights(const fs::path& path) {
  const Intact checkpoint = find_checkpoint(path);
  return {checkpoint.path, checkpoint.manifest.state.step,
          read_safetensors(checkpoint.path / kModelFile)};
}

SavedModel load_saved_model(const fs::path& path) {
  const Intact checkpoint = find_checkpoint(path);
  const auto& state = checkpoint.manifest.state;
  if (!state.model) {
    throw Error(ErrorCode::Unsupported,
                fmt::format("{} does not say which model it holds: it was saved by an earlier "
                            "release, or by a program of one's own. Go on with its job for a step "
                            "(bimetal train JOB --resume {}), and the next one will",
                            checkpoint.path.string(), path.string()));
  }
  SavedModel saved{.path = checkpoint.path,
                   .sequence = checkpoint.manifest.sequence,
                   .step = state.step,
                   .description = *state.model,
                   .model = make_described_model(*state.model)};
  load_model(saved.model, checkpoint.path / kModelFile);
  return saved;
}

LastSave last_save(const fs::path& dir) {
  const auto found = list_checkpoints(dir);
  return found.empty() ? LastSave() : found.front();
}

}  // namespace bimetal::checkpoint
