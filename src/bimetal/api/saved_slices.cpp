#include "bimetal/api/saved_slices.h"

#include <string>
#include <utility>

#include "bimetal/base/deadline.h"
#include "bimetal/checkpoint/model_file.h"
#include "bimetal/checkpoint/open_checkpoint.h"
#include "bimetal/checkpoint/optimizer_state.h"
#include "bimetal/checkpoint/slices/shared_reader.h"
#include "bimetal/checkpoint/starting_point.h"
#include "bimetal/comm/exchange.h"

namespace bimetal::api {

std::filesystem::path save_kept(const comm::Group& group, const job::CheckpointConfig& config,
                                const KeptOfModel& kept, const torch::optim::Optimizer& optimizer,
                                checkpoint::TrainingState state,
                                std::chrono::milliseconds timeout) {
  auto own = train::own_slices(kept.pieces, optimizer, kept.gives);
  if (kept.gives_uncut) train::add_whole(own, kept.uncut);
  own.written = kept.looked_at;
  std::filesystem::path path;
  comm::do_watched(group, timeout, "a checkpoint was being saved", [&] {
    path =
        checkpoint::save_slices(group, config, own, checkpoint::optimizer_facts(optimizer), state);
  });
  return path;
}

checkpoint::TrainingState take_kept(const comm::Group& group, const std::filesystem::path& from,
                                    const KeptOfModel& kept, torch::optim::Optimizer& optimizer) {
  checkpoint::SharedReader saved(group, from);
  const auto facts = checkpoint::optimizer_facts(optimizer);
  saved.on_rank_0([&](const checkpoint::OpenCheckpoint& opened) {
    checkpoint::require_same_kind(opened, facts);
    checkpoint::require_same_model(opened, kept.model);
    checkpoint::log_changed_settings(opened, facts);
  });
  train::take_whole(saved, kept.uncut);
  train::require_known_states(saved, kept.trained);
  train::take_pieces(saved, kept.pieces, optimizer, kept.looked_at);
  return saved.state();
}

std::optional<std::filesystem::path> checkpoints_in(const comm::Group& group,
                                                    const std::filesystem::path& dir) {
  const auto found = comm::from_rank_0(
      group, [&] { return std::string(checkpoint::last_save(dir).sequence > 0 ? "yes" : ""); },
      Deadline::after(checkpoint::kFileTimeout));
  return found.empty() ? std::nullopt : std::optional(dir);
}

std::uint64_t next_term(const comm::Group& group, const std::filesystem::path& dir) {
  const auto term = comm::from_rank_0(
      group, [&] { return std::to_string(checkpoint::last_save(dir).term + 1); },
      Deadline::after(checkpoint::kFileTimeout));
  return std::stoull(term);
}

void save_on_rank_0(const comm::Group& group, const task::ModelState& model,
                    const std::filesystem::path& path) {
  comm::on_rank_0(
      group, [&] { checkpoint::save_model(model, path); },
      Deadline::after(checkpoint::kFileTimeout));
}

}  // namespace bimetal::api
