#include "bimetal/checkpoint/checkpoint.h"

#include <fmt/format.h>
#include <torch/csrc/api/include/torch/optim.h>
#include <torch/csrc/api/include/torch/types.h>
#include <torch/csrc/api/include/torch/utils.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "bimetal/base/error.h"
#include "bimetal/checkpoint/checkpoint_folder.h"
#include "bimetal/checkpoint/checkpoint_manifest.h"
#include "bimetal/checkpoint/model_file.h"
#include "bimetal/checkpoint/open_checkpoint.h"
#include "bimetal/checkpoint/optimizer_state.h"
#include "bimetal/checkpoint/safetensors.h"
#include "bimetal/comm/exchange.h"

namespace bimetal::checkpoint {
namespace {

namespace fs = std::filesystem;
using torch::optim::Optimizer;

Manifest write_contents(const fs::path& folder, const CheckpointContents& contents) {
  write_safetensors(folder / kModelFile, contents.model);
  write_safetensors(folder / kOptimizerFile, contents.optimizer);
  if (!contents.state.error_feedback.empty()) {
    write_safetensors(folder / kFeedbackFile, feedback_tensors(contents.state));
  }
  return {.state = contents.state,
          .optimizer = contents.optimizer_facts.kind,
          .optimizer_groups = contents.optimizer_facts.groups,
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
                         const Optimizer& optimizer, const TrainingState& state, std::int64_t keep,
                         const AdmitSave& admit) {
  return save_contents(dir, contents_of(model, optimizer, state), keep, admit);
}

CheckpointContents contents_of(const task::ModelState& model, const Optimizer& optimizer,
                               const TrainingState& state) {
  return {.model = model_tensors(model),
          .optimizer = optimizer_tensors(optimizer, model),
          .optimizer_facts = optimizer_facts(optimizer),
          .state = state};
}

fs::path save_contents(const fs::path& dir, const CheckpointContents& contents, std::int64_t keep,
                       const AdmitSave& admit) {
  NewCheckpoint fresh(dir, contents.state.step, keep);
  try {
    fresh.commit(write_contents(fresh.folder(), contents), admit);
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
  throw Error(ErrorCode::Unsupported,
              fmt::format("the checkpoint in {0} does not say which model it holds: it was saved "
                          "by a program of one's own. Go on with its job for a step (bimetal train "
                          "JOB --resume {0}), and the next one will",
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

namespace {

bool all_finite(const task::ModelState& model) {
  const torch::NoGradGuard no_grad;
  return std::ranges::all_of(model.parameters, [](const task::NamedTensor& parameter) {
    // A sum is finite unless an element is not (or it overflows, which is no better).
    return std::isfinite(parameter.tensor.sum().item<double>());
  });
}

/// `own`: of rank 0, which has one or not; elsewhere nullptr.
std::optional<TrainingState> share(const comm::Group& group, const TrainingState* own,
                                   const task::ModelState& model,
                                   torch::optim::Optimizer& optimizer) {
  const std::string origin = "the training state that rank 0 has sent";
  const auto broadcast = [&](comm::Bytes bytes) {
    return comm::broadcast_bytes(group, std::move(bytes), 0, Deadline::after(kFileTimeout));
  };
  // Encoded like the checkpoint's files: data, in which nothing can be executed.
  const auto text = comm::broadcast_text(group, own ? state_text(*own) : std::string(), 0,
                                         Deadline::after(kFileTimeout));
  if (text.empty()) return std::nullopt;
  const auto feedback = broadcast(own ? encode_safetensors(feedback_tensors(*own)) : comm::Bytes());
  const auto learnt =
      broadcast(own ? encode_safetensors(optimizer_tensors(optimizer, model)) : comm::Bytes());
  if (own) return *own;
  auto state = parse_state_text(text, origin);
  state.error_feedback = feedback_values(decode_safetensors(feedback, origin));
  optimizer.state() =
      optimizer_states(decode_safetensors(learnt, origin), optimizer, model, origin);
  return state;
}

}  // namespace

std::filesystem::path save_shared_checkpoint(comm::Group group, const job::CheckpointConfig& config,
                                             const task::ModelState& model,
                                             const torch::optim::Optimizer& optimizer,
                                             const TrainingState& state) {
  std::string path;
  if (group.rank() == 0) {
    path = save_checkpoint(config.dir, model, optimizer, state, config.keep).string();
  }
  return comm::broadcast_text(group, path, 0, Deadline::after(kFileTimeout));
}

std::optional<TrainingState> load_shared_checkpoint(
    comm::Group group, const std::optional<std::filesystem::path>& path,
    const task::ModelState& model, torch::optim::Optimizer& optimizer) {
  std::optional<TrainingState> own;
  const auto load = [&] {
    if (path) own = load_checkpoint(*path, model, optimizer);
  };
  comm::on_rank_0(group, load, Deadline::after(kFileTimeout));
  if (group.size() == 1) return own;
  return share(group, own ? &*own : nullptr, model, optimizer);
}

void require_finite_parameters(comm::Group group, const task::ModelState& model, std::int64_t step,
                               std::chrono::milliseconds timeout) {
  const std::vector<std::uint8_t> mine = {all_finite(model) ? std::uint8_t{1} : std::uint8_t{0}};
  std::vector<std::uint8_t> all(static_cast<std::size_t>(group.size()));
  group
      .all_gather(comm::buffer(std::span(mine)), comm::buffer(std::span(all)),
                  Deadline::after(timeout))
      .wait();
  const auto bad = std::ranges::find(all, std::uint8_t{0});
  if (bad == all.end()) return;
  const auto rank = static_cast<int>(bad - all.begin());
  throw Error(
      ErrorCode::NotFinite,
      fmt::format("after step {} the parameters on rank {} are not finite (NaN or infinity); lower "
                  "train.learning_rate. The last checkpoint is kept: go on from it with --resume",
                  step, rank),
      rank);
}

}  // namespace bimetal::checkpoint
