#include "bimetal/train/checkpoint_folder.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <system_error>
#include <tuple>

#include "bimetal/base/error.h"
#include "bimetal/base/log.h"
#include "bimetal/base/temporary_path.h"
#include "bimetal/train/checkpoint_manifest.h"

namespace bimetal::train {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "step-";

bool is_checkpoint_name(std::string_view name) {
  return name.size() > kPrefix.size() && name.starts_with(kPrefix) &&
         name.find_first_not_of("0123456789", kPrefix.size()) == std::string_view::npos;
}

std::uint64_t sequence_of(const fs::path& checkpoint) {
  try {
    return read_manifest(checkpoint).sequence;
  } catch (const Error&) {
    return 0;
  }
}

/// Renamed first, so that a process killed meanwhile leaves a leftover and not half a checkpoint.
void remove_checkpoint(const fs::path& path) {
  TemporaryPath aside(path, TemporaryPath::Kind::folder);
  fs::rename(path, aside.path());
}

}  // namespace

fs::path checkpoint_path(const fs::path& dir, std::int64_t step) {
  return dir / fmt::format("{}{:08}", kPrefix, step);
}

std::vector<CheckpointEntry> list_checkpoints(const fs::path& dir) {
  std::vector<CheckpointEntry> found;
  std::error_code error;  // no such folder: no checkpoints
  for (fs::directory_iterator entry(dir, error), end; !error && entry != end;
       entry.increment(error)) {
    std::error_code ignored;
    const bool named = is_checkpoint_name(entry->path().filename().string());
    if (!named || !entry->is_directory(ignored)) continue;
    found.push_back({entry->path(), sequence_of(entry->path())});
  }
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

}  // namespace bimetal::train
