#include "bimetal/checkpoint/slices/save_slices.h"

#include <fmt/format.h>

#include <array>
#include <exception>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <system_error>
#include <utility>

#include "bimetal/base/error.h"
#include "bimetal/checkpoint/checkpoint.h"
#include "bimetal/checkpoint/checkpoint_folder.h"
#include "bimetal/checkpoint/safetensors.h"
#include "bimetal/checkpoint/slices/shared_reader.h"
#include "bimetal/comm/exchange.h"

namespace bimetal::checkpoint {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr std::array<const char*, 2> kParts = {"model", "optimizer"};
constexpr const char* kOutcomes = "what a rank says of its part of the checkpoint";

Deadline by_now() {
  return Deadline::after(kFileTimeout);
}

/// The outcome of saving a rank's part.
struct Outcome {
  std::optional<Error> error = {};
  FileRecords files = {};
  TensorIndex model = {}, optimizer = {};
};

std::string outcome_text(const Outcome& outcome) {
  Json json;
  if (outcome.error) {
    json["error"] = {static_cast<int>(outcome.error->code()), outcome.error->what()};
  } else {
    json = {{"files", files_json(outcome.files)},
            {"model", index_json(outcome.model)},
            {"optimizer", index_json(outcome.optimizer)}};
  }
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Outcome parse_outcome(const std::string& text) {
  const Json json = Json::parse(text);
  if (json.contains("error")) {
    const auto code = static_cast<ErrorCode>(json.at("error").at(0).get<int>());
    return {.error = Error(code, json.at("error").at(1).get<std::string>())};
  }
  return {.files = parse_files(json.at("files")),
          .model = parse_index(json.at("model"), kOutcomes),
          .optimizer = parse_index(json.at("optimizer"), kOutcomes)};
}

/// Makes the new checkpoint, on rank 0.
using Begin = std::function<void(std::optional<NewCheckpoint>& fresh)>;

class SlicedSave {
 public:
  SlicedSave(comm::Group group, const OwnSlices& own) : group_(std::move(group)), own_(own) {}

  fs::path run(const fs::path& target, const Begin& begin, const Manifest& facts) {
    open(target, begin);
    write_own();
    for (int rank = 1; rank < group_.size() && group_.rank() == 0; ++rank) {
      if (seeing_[static_cast<std::size_t>(rank)] == 0) take_over(rank);
    }
    const auto parts = agree();
    outcome_ = {};
    if (fresh_) attempt([&] { commit(parts, facts); });
    agree();
    return target_;
  }

 private:
  void open(const fs::path& target, const Begin& begin);
  void write_own();
  void write_here();
  void send_away();
  void take_over(int rank);
  bool receive(RelayIn& from, const std::string& name);
  std::vector<Outcome> agree();
  void commit(const std::vector<Outcome>& parts, const Manifest& facts);

  /// All ranks hear of tensors that no file can hold, before any of them sends its part.
  void require_types() const {
    for (std::size_t i = 0; i < kParts.size(); ++i) {
      for (const auto& slice : part(i)) require_storable(slice.name, slice.values);
    }
  }
  const std::vector<OwnSlice>& part(std::size_t i) const {
    return i == 0 ? own_.model : own_.optimizer;
  }
  std::string own_name(std::size_t i) const {
    return slice_file_name(kParts[i], group_.rank(), group_.size());
  }

  /// An error with files here is told to all ranks in the end.
  template <typename Action>
  bool attempt(Action action) try {
    action();
    return true;
  } catch (const Error& error) {
    outcome_.error = error;
    return false;
  } catch (const std::exception& error) {
    outcome_.error = Error(ErrorCode::System, error.what());
    return false;
  }

  comm::Group group_;
  const OwnSlices& own_;
  std::optional<NewCheckpoint> fresh_;  ///< on rank 0
  fs::path folder_, target_;
  std::vector<std::uint8_t> seeing_;  ///< of each rank: whether it writes for itself
  std::array<std::optional<SliceFile>, kParts.size()> files_;
  Outcome outcome_;
};

/// The folder's name is random: a rank that finds one of that name sees the same folder. Files are
/// made before the ranks tell each other, so that nobody makes any in a folder that rank 0 removes.
void SlicedSave::open(const fs::path& target, const Begin& begin) {
  target_ = target;
  const bool fine = attempt([&] { require_types(); });
  if (fine && group_.rank() == 0 && attempt([&] { begin(fresh_); })) {
    folder_ = fs::absolute(fresh_->folder());
  }
  const auto from_rank_0 = [&](const fs::path& path) {
    return fs::path(comm::broadcast_text(group_, path.string(), 0, by_now()));
  };
  folder_ = from_rank_0(folder_);
  target_ = from_rank_0(target_);
  agree();  // on what rank 0 says of it, and all of their tensors
  std::error_code none;
  // Rank 0 has nobody to send its part to: where its folder has gone, it says so.
  const bool there = group_.rank() == 0 || fs::is_directory(folder_, none);
  std::vector<std::uint8_t> sees = {there ? std::uint8_t{1} : std::uint8_t{0}};
  const auto make_files = [&] {
    for (std::size_t i = 0; i < kParts.size(); ++i) {
      if (!part(i).empty()) files_[i].emplace(folder_ / own_name(i));
    }
  };
  // A rank that sees the folder but may not write there is no worse off than one that does not see
  // it.
  if (sees[0] != 0 && !attempt(make_files) && group_.rank() > 0) {
    for (std::size_t i = 0; i < kParts.size(); ++i) {
      if (std::exchange(files_[i], {})) fs::remove(folder_ / own_name(i), none);
    }
    sees[0] = 0;
    outcome_.error.reset();
  }
  seeing_.resize(static_cast<std::size_t>(group_.size()));
  group_
      .all_gather(comm::buffer(std::span(std::as_const(sees))), comm::buffer(std::span(seeing_)),
                  by_now())
      .wait();
}

void SlicedSave::write_own() {
  for (std::size_t i = 0; i < kParts.size(); ++i) {
    auto& index = i == 0 ? outcome_.model : outcome_.optimizer;
    if (!part(i).empty()) index = index_of(part(i), own_name(i));
  }
  if (seeing_[static_cast<std::size_t>(group_.rank())] == 0) return send_away();
  if (!outcome_.error) attempt([&] { write_here(); });
}

void SlicedSave::write_here() {
  for (std::size_t i = 0; i < kParts.size(); ++i) {
    if (!files_[i]) continue;
    encode_slices(
        part(i), [&](std::span<const std::byte> bytes) { files_[i]->write(bytes); }, own_.written);
    outcome_.files[own_name(i)] = files_[i]->finish();
  }
}

void SlicedSave::send_away() try {
  for (std::size_t i = 0; i < kParts.size(); ++i) {
    RelayOut out(group_, 0);
    if (!part(i).empty()) {
      encode_slices(
          part(i), [&](std::span<const std::byte> bytes) { out.write(bytes); }, own_.written);
    }
    out.end();
  }
} catch (const RelayRefused&) {
  // Rank 0's outcome says why.
}

void SlicedSave::take_over(int rank) {
  for (const char* what : kParts) {
    RelayIn from(group_, rank);
    if (outcome_.error) return from.refuse();
    if (!receive(from, slice_file_name(what, rank, group_.size()))) return;
  }
}

/// False if no more is to be expected of that rank.
bool SlicedSave::receive(RelayIn& from, const std::string& name) {
  std::optional<SliceFile> file;
  std::vector<std::byte> piece;
  while (from.next(piece)) {
    const bool written = attempt([&] {
      if (!file) file.emplace(folder_ / name);
      file->write(piece);
    });
    if (written) continue;
    from.refuse();
    return false;
  }
  if (file) attempt([&] { outcome_.files[name] = file->finish(); });
  return true;
}

/// Throws the same on every rank if any has failed.
std::vector<Outcome> SlicedSave::agree() {
  std::vector<Outcome> all;
  for (const auto& text : comm::all_gather_text(group_, outcome_text(outcome_), by_now())) {
    all.push_back(parse_outcome(text));
  }
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (!all[rank].error) continue;
    fresh_.reset();
    group_.barrier(by_now()).wait();  // nothing is left of it when the first rank ends
    throw Error(all[rank].error->code(),
                fmt::format("cannot save the checkpoint {}: rank {}: {}", target_.string(), rank,
                            all[rank].error->what()),
                static_cast<int>(rank));
  }
  return all;
}

void SlicedSave::commit(const std::vector<Outcome>& parts, const Manifest& facts) {
  auto manifest = facts;
  SliceIndex index;
  index.ranks = group_.size();
  for (const auto& part : parts) {
    merge_into(index.model, part.model);
    merge_into(index.optimizer, part.optimizer);
    manifest.files.insert(part.files.begin(), part.files.end());
  }
  require_complete(index.model, kOutcomes);
  require_complete(index.optimizer, kOutcomes);
  manifest.slices = std::move(index);
  fresh_->commit(std::move(manifest));
}

}  // namespace

fs::path save_slices(comm::Group group, const job::CheckpointConfig& config, const OwnSlices& own,
                     const OptimizerFacts& optimizer, const TrainingState& state) {
  Manifest facts;
  facts.state = state;
  facts.optimizer = optimizer.kind;
  facts.optimizer_groups = optimizer.groups;
  const auto begin = [&](std::optional<NewCheckpoint>& fresh) {
    fresh.emplace(config.dir, state.step, config.keep);
  };
  return SlicedSave(std::move(group), own)
      .run(checkpoint_path(config.dir, state.step), begin, facts);
}

fs::path save_slices_as(comm::Group group, const fs::path& target, const OwnSlices& own,
                        const Manifest& facts) {
  const auto begin = [&](std::optional<NewCheckpoint>& fresh) { fresh.emplace(target); };
  return SlicedSave(std::move(group), own).run(target, begin, facts);
}

}  // namespace bimetal::checkpoint
