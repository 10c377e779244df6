#include "bimetal/checkpoint/checkpoint_folder.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <memory>
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
// Whoever has its turn renames a folder, which disks do within moments.
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

/// Where checkpoints of `dir` may be made, of which so many stay.
fs::path folder_of_steps(const fs::path& dir, std::int64_t keep) {
  if (keep < 1) throw Error(ErrorCode::InvalidArgument, "at least one checkpoint must be kept");
  made_folder(dir);
  remove_checkpoint_leftovers(dir);
  return dir;
}

/// The same path, if a save may replace what lies there.
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

}  // namespace bimetal::checkpoint
