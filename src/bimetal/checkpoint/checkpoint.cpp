#include "bimetal/checkpoint/checkpoint.h"

#include <fmt/format.h>
#include <torch/csrc/api/include/torch/optim.h>
#include <torch/csrc/api/include/torch/types.h>
#include <torch/csrc/api/include/torch/utils.h>

#include <utility>

#include "bimetal/base/error.h"
#include "bimetal/checkpoint/admitted_save.h"
#include "bimetal/checkpoint/checkpoint_folder.h"
#include "bimetal/checkpoint/checkpoint_manifest.h"
#include "bimetal/checkpoint/feedback_tensors.h"
#include "bimetal/checkpoint/model_file.h"
#include "bimetal/checkpoint/open_checkpoint.h"
#include "bimetal/checkpoint/optimizer_state.h"
#include "bimetal/checkpoint/safetensors.h"

namespace bimetal::checkpoint {
namespace {

namespace fs = std::filesystem;
using torch::optim::Optimizer;

Manifest write_contents(const fs::path& folder, const task::ModelState& model,
                        const Optimizer& optimizer, const TrainingState& state) {
  write_safetensors(folder / kModelFile, model_tensors(model));
  write_safetensors(folder / kOptimizerFile, optimizer_tensors(optimizer, model));
  if (!state.error_feedback.empty()) {
    write_safetensors(folder / kFeedbackFile, feedback_tensors(state));
  }
  const auto facts = optimizer_facts(optimizer);
  return {.state = state,
          .optimizer = facts.kind,
          .optimizer_groups = facts.groups,
          .files = record_files(folder)};
}

/// Into the tensors themselves, one after the other, once it is clear that they fit.
void take_values(OpenCheckpoint& checkpoint, const TensorIndex& stored, const TensorMap& own) {
  const torch::NoGradGuard no_grad;
  for (const auto& [name, tensor] : stored) {
    torch::Tensor(own.at(name)).copy_(checkpoint.read(name, tensor));
  }
}

}  // namespace

fs::path save_checkpoint(const fs::path& dir, const task::ModelState& model,
                         const Optimizer& optimizer, const TrainingState& state,
                         std::int64_t keep) {
  return save_checkpoint(dir, model, optimizer, state, keep, {});
}

fs::path save_checkpoint(const fs::path& dir, const task::ModelState& model,
                         const Optimizer& optimizer, const TrainingState& state, std::int64_t keep,
                         const AdmitSave& admit) {
  NewCheckpoint fresh(dir, state.step, keep);
  try {
    fresh.commit(write_contents(fresh.folder(), model, optimizer, state), admit);
  } catch (const Error& error) {
    throw fresh.explained(error);
  }
  return fresh.target();
}

TrainingState load_checkpoint(const fs::path& path, const task::ModelState& model,
                              Optimizer& optimizer) {
  auto checkpoint = find_checkpoint(path);
  const auto facts = optimizer_facts(optimizer);
  require_same_kind(checkpoint, facts);
  const auto stored = require_same_model(checkpoint, model);
  auto states = optimizer_states(checkpoint.read_all(checkpoint.index().optimizer), optimizer,
                                 model, checkpoint.optimizer_origin());
  auto state = checkpoint.manifest().state;
  state.error_feedback = checkpoint.error_feedback();
  log_changed_settings(checkpoint, facts);
  take_values(checkpoint, stored, model_tensors(model));
  optimizer.state() = std::move(states);
  return state;
}

fs::path load_checkpoint_model(const fs::path& path, const task::ModelState& model) {
  auto checkpoint = find_checkpoint(path);
  take_values(checkpoint, require_same_model(checkpoint, model), model_tensors(model));
  return checkpoint.path();
}

ModelDescription description_in(const TrainingState& state, const fs::path& path) {
  if (state.model) return *state.model;
  throw Error(
      ErrorCode::Unsupported,
      fmt::format("the checkpoint in {0} does not say which model it holds: it was saved by "
                  "an earlier release, or by a program of one's own. Go on with its job "
                  "for a step (bimetal train JOB --resume {0}), and the next one will",
                  path.string()));
}

void require_language_model(const ModelDescription& description, const fs::path& path) {
  if (description.language) return;
  throw Error(ErrorCode::InvalidArgument,
              fmt::format("{} holds the model '{}', which is no language model: ask it with "
                          "bimetal serve and predict",
                          path.string(), description.name));
}

SavedModel load_saved_model(const fs::path& path) {
  auto checkpoint = find_checkpoint(path);
  const auto& state = checkpoint.manifest().state;
  const auto description = description_in(state, path);
  SavedModel saved{.path = checkpoint.path(),
                   .sequence = checkpoint.manifest().sequence,
                   .step = state.step,
                   .description = description,
                   .model = make_described_model(description)};
  take_values(checkpoint, require_same_model(checkpoint, saved.model), model_tensors(saved.model));
  return saved;
}

LastSave last_save(const fs::path& dir) {
  const auto found = list_checkpoints(dir);
  return found.empty() ? LastSave() : found.front();
}

}  // namespace bimetal::checkpoint
