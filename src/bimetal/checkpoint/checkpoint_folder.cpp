#include "bimetal/checkpoint/checkpoint_folder.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <string_view>
#include <system_error>
#include <thread>
#include <tuple>

#include "bimetal/base/deadline.h"
#include "bimetal/base/error.h"
#include "bimetal/base/files.h"
#include "bimetal/base/log.h"
#include "bimetal/checkpoint/checkpoint_manifest.h"

namespace bimetal::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "step-";
constexpr std::string_view kAnyStep = "step-0";
// A process that has its turn renames a folder, which disks do within moments.
constexpr std::chrono::seconds kForATurn{30};
constexpr std::chrono::milliseconds kTryAgain{10};

bool is_checkpoint_name(std::string_view name) {
  return name.size() > kPrefix.size() && name.starts_with(kPrefix) &&
         name.find_first_not_of("0123456789", kPrefix.size()) == std::string_view::npos;
}

CheckpointEntry entry_of(const fs::path& checkpoint) {
  try {
    const auto manifest = read_manifest(checkpoint);
    return {checkpoint, manifest.sequence, manifest.state.term, manifest.state.step};
  } catch (const Error& error) {
    if (error.code() == ErrorCode::System) throw;  // it may be the newest
    return {checkpoint};
  }
}

void require_known(const std::error_code& error, const fs::path& path) {
  if (error && !is_missing(error)) throw system_error("cannot read " + path.string(), error);
}

/// The folder is closed again before anything in it is opened: descriptors may be few.
std::vector<fs::path> checkpoints_in(const fs::path& dir) {
  std::vector<fs::path> found;
  std::error_code error;
  for (fs::directory_iterator entry(dir, error), end; !error && entry != end;
       entry.increment(error)) {
    if (!is_checkpoint_name(entry->path().filename().string())) continue;
    std::error_code unknown;
    if (entry->is_directory(unknown)) found.push_back(entry->path());
    require_known(unknown, entry->path());
  }
  require_known(error, dir);  // no such folder: no checkpoints
  return found;
}

fs::path made_folder(const fs::path& dir) {
  std::error_code error;
  fs::create_directories(dir, error);
  if (error) throw system_error("cannot make the checkpoint folder " + dir.string(), error);
  return dir;
}

/// The folder of `dir` for checkpoints of which `keep` stay.
fs::path folder_of_steps(const fs::path& dir, std::int64_t keep) {
  if (keep < 1) throw Error(ErrorCode::InvalidArgument, "at least one checkpoint must be kept");
  made_folder(dir);
  remove_checkpoint_leftovers(dir);
  return dir;
}

/// The same path, if a save may replace the folder there.
fs::path replaceable(const fs::path& target) {
  std::error_code error;
  const auto is = [&](bool answer) {
    require_known(error, target);
    return answer;
  };
  if (!is(fs::exists(target, error)) || is(fs::exists(target / kStateFile, error))) return target;
  if (is(fs::is_directory(target, error)) && is(fs::is_empty(target, error))) return target;
  throw Error(
      ErrorCode::InvalidArgument,
      fmt::format("{} is there and is no checkpoint: give a name that is free, or a checkpoint's",
                  target.string()));
}

/// Returns once nobody else puts a checkpoint into `dir`, or where no file system can tell.
std::unique_ptr<PathClaim> take_turn(const fs::path& dir) {
  std::error_code error;
  const fs::path folder = fs::canonical(dir, error);
  require_known(error, dir);
  for (const auto deadline = Deadline::after(kForATurn); !deadline.expired();
       std::this_thread::sleep_for(kTryAgain)) {
    auto claim = std::make_unique<PathClaim>(folder);
    if (claim->outcome() == PathClaim::Outcome::held) return claim;
    if (claim->outcome() == PathClaim::Outcome::busy) continue;
    log(LogLevel::info, "no locks in {}: processes do not take turns there", folder.string());
    return claim;
  }
  throw Error(ErrorCode::Timeout, fmt::format("another process has been putting a checkpoint into "
                                              "{} for {} s, and is stopped, most likely; end it",
                                              folder.string(), kForATurn.count()));
}

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;
using progress::BestReport;

constexpr const char* kFigures = "best.json";

progress::Evaluation figures_of(const BestReport& best) {
  return {.loss = best.loss, .metrics = best.metrics};
}

std::string text_of_figures(const BestReport& best) {
  Json json = {{"step", best.step}, {"loss", best.loss}, {"metrics", Json::object()}};
  for (const auto& [name, value] : best.metrics) json["metrics"][name] = value;
  return json.dump(2) + "\n";
}

/// Nothing where there are none, or they make no sense: then the next evaluation is the best.
std::optional<BestReport> read_figures(const fs::path& folder, std::int64_t until) {
  const auto path = folder / kFigures;
  auto file = InputFile::find(path);
  if (!file) return std::nullopt;
  try {
    const auto json = Json::parse(file->read_all());
    BestReport best{.step = json.at("step"), .loss = json.at("loss")};
    for (const auto& [name, value] : json.at("metrics").items()) {
      best.metrics.push_back({name, value.get<double>()});
    }
    best.checkpoint = checkpoint_path(folder, best.step).string();
    std::error_code unknown;
    if (best.step <= until && fs::is_directory(best.checkpoint, unknown)) return best;
  } catch (const Json::exception& damaged) {
    log(LogLevel::warning, "{} is damaged: {}", path.string(), damaged.what());
  }
  return std::nullopt;
}

void link_or_copy(const fs::path& file, const fs::path& name) {
  std::error_code error;
  fs::create_hard_link(file, name, error);
  if (!error) return;
  fs::copy_file(file, name, error);
  if (error) throw system_error("cannot write " + name.string(), error);
  if (const auto copied = std::unique_ptr<std::FILE, int (*)(std::FILE*)>(
          std::fopen(name.string().c_str(), "rb"), std::fclose)) {
    sync_file(copied.get(), name);
  }
}

}  // namespace

void remove_checkpoint_leftovers(const fs::path& dir) noexcept {
  remove_leftovers(dir, kAnyStep, Leftovers::of_numbering);
}

void remove_checkpoint(const fs::path& path) {
  TemporaryPath aside(path, TemporaryPath::Kind::folder);
  fs::rename(path, aside.path());
}

fs::path checkpoint_path(const fs::path& dir, std::int64_t step) {
  return dir / fmt::format("{}{:08}", kPrefix, step);
}

std::vector<CheckpointEntry> list_checkpoints(const fs::path& dir) {
  std::vector<CheckpointEntry> found;
  for (const fs::path& path : checkpoints_in(dir)) found.push_back(entry_of(path));
  std::sort(found.begin(), found.end(), [](const auto& a, const auto& b) {
    return std::tie(a.sequence, a.path) > std::tie(b.sequence, b.path);
  });
  return found;
}

void prune_checkpoints(const fs::path& dir, std::int64_t keep) noexcept try {
  for (const CheckpointEntry& entry : list_checkpoints(dir)) {
    if (entry.sequence != 0 && keep-- <= 0) remove_checkpoint(entry.path);
  }
} catch (const std::exception& error) {
  log(LogLevel::warning, "cannot remove old checkpoints in {}: {}", dir.string(), error.what());
}

NewCheckpoint::NewCheckpoint(const fs::path& dir, std::int64_t step, std::int64_t keep)
    : dir_(folder_of_steps(dir, keep)),
      keep_(keep),
      folder_(checkpoint_path(dir, step), TemporaryPath::Kind::folder) {}

NewCheckpoint::NewCheckpoint(const fs::path& target)
    : dir_(made_folder(target.parent_path())),
      keep_(0),
      folder_(replaceable(target), TemporaryPath::Kind::folder) {}

void NewCheckpoint::commit(Manifest manifest, const AdmitSave& admit) {
  {
    const auto turn = take_turn(dir_);
    const auto newest = last_save(dir_);
    if (admit) admit(newest);
    manifest.sequence = newest.sequence + 1;
    write_file_atomically(folder() / kStateFile, manifest_text(manifest));
    folder_.move_into_place();
  }
  if (keep_ > 0) prune_checkpoints(dir_, keep_);
}

Error NewCheckpoint::explained(const Error& error) const {
  return {error.code(),
          fmt::format("cannot save the checkpoint {}: {}", target().string(), error.what()),
          error.rank()};
}

fs::path place_of_new_folder(const fs::path& folder) {
  auto target = fs::absolute(folder).lexically_normal();
  if (!target.has_filename()) target = target.parent_path();  // "folder/"
  std::error_code none;
  if (fs::exists(target, none) && !(fs::is_directory(target) && fs::is_empty(target))) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("{} is there already: name a new or empty folder", target.string()));
  }
  fs::create_directories(target.parent_path());
  return target;
}

bool is_better(const progress::Evaluation& a, const progress::Evaluation& b) {
  if (!std::isfinite(a.loss)) return false;
  if (!a.metrics.empty() && progress::is_ratio(a.metrics.front().name)) {
    const auto& [name, value] = a.metrics.front();
    const auto other = progress::value_of(b.metrics, name);
    if (!std::isfinite(value)) return false;
    if (value != other) return !(value < other);
  }
  return !(a.loss >= b.loss);
}

BestCheckpoint::BestCheckpoint(fs::path dir, std::int64_t start_step)
    : folder_(dir.empty() ? dir : dir / kBestFolder) {
  if (!folder_.empty() && start_step > 0) best_ = read_figures(folder_, start_step);
}

void BestCheckpoint::offer(const fs::path& checkpoint, std::int64_t step,
                           const progress::Evaluation& evaluation) {
  if (!std::isfinite(evaluation.loss)) return;
  if (best_ && !is_better(evaluation, figures_of(*best_))) return;
  best_ = {.step = step, .loss = evaluation.loss, .metrics = evaluation.metrics};
  if (!folder_.empty() && !checkpoint.empty()) keep(checkpoint);
}

void BestCheckpoint::keep(const fs::path& checkpoint) {
  std::error_code error;
  fs::create_directories(folder_, error);
  if (error) throw system_error("cannot make the folder " + folder_.string(), error);
  remove_checkpoint_leftovers(folder_);
  const auto target = checkpoint_path(folder_, best_->step);
  TemporaryPath aside(target, TemporaryPath::Kind::folder);
  for (const auto& entry : fs::directory_iterator(checkpoint)) {
    link_or_copy(entry.path(), aside.path() / entry.path().filename());
  }
  sync_directory(aside.path());
  aside.move_into_place();
  best_->checkpoint = target.string();
  write_file_atomically(folder_ / kFigures, text_of_figures(*best_));
  for (const auto& entry : list_checkpoints(folder_)) {
    if (entry.path != target) remove_checkpoint(entry.path);
  }
}

}  // namespace bimetal::checkpoint
