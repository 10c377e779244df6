#include "bimetal/checkpoint/shared_checkpoint.h"

#include <fmt/format.h>
#include <torch/csrc/api/include/torch/optim.h>
#include <torch/csrc/api/include/torch/types.h>
#include <torch/csrc/api/include/torch/utils.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "bimetal/base/error.h"
#include "bimetal/checkpoint/checkpoint_manifest.h"
#include "bimetal/checkpoint/feedback_tensors.h"
#include "bimetal/checkpoint/optimizer_state.h"
#include "bimetal/comm/exchange.h"
#include "bimetal/comm/from_rank_0.h"

namespace bimetal::checkpoint {
namespace {

constexpr const char* kOrigin = "the training state that rank 0 has sent";

comm::Bytes bytes_of(std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

std::string text_of(const comm::Bytes& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

bool all_finite(const task::ModelState& model) {
  const torch::NoGradGuard no_grad;
  return std::ranges::all_of(model.parameters, [](const task::NamedTensor& parameter) {
    // A sum is finite unless an element is not (or it overflows, which is no better).
    return std::isfinite(parameter.tensor.sum().item<double>());
  });
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
  return text_of(comm::broadcast_bytes(group, bytes_of(path), 0, Deadline::after(kFileTimeout)));
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
  const auto broadcast = [&](comm::Bytes bytes) {
    return comm::broadcast_bytes(group, std::move(bytes), 0, Deadline::after(kFileTimeout));
  };
  // Encoded like the checkpoint's files: data, in which nothing can be executed.
  const auto text = broadcast(own ? bytes_of(state_text(*own)) : comm::Bytes());
  if (text.empty()) return std::nullopt;
  const auto feedback = broadcast(own ? encode_safetensors(feedback_tensors(*own)) : comm::Bytes());
  const auto learnt =
      broadcast(own ? encode_safetensors(optimizer_tensors(optimizer, model)) : comm::Bytes());
  if (own) return own;
  auto state = parse_state_text(text_of(text), kOrigin);
  state.error_feedback = feedback_values(decode_safetensors(feedback, kOrigin));
  optimizer.state() =
      optimizer_states(decode_safetensors(learnt, kOrigin), optimizer, model, kOrigin);
  return state;
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
      fmt::format("after step {} the parameters on rank {} are not finite (NaN or infinity); "
                  "lower train.learning_rate. The last checkpoint is kept: go on from it "
                  "with --resume",
                  step, rank),
      rank);
}

}  // namespace bimetal::checkpoint
