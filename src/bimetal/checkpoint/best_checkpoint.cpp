#include "bimetal/checkpoint/best_checkpoint.h"

#include <cmath>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <system_error>

#include "bimetal/base/error.h"
#include "bimetal/base/files.h"
#include "bimetal/base/log.h"
#include "bimetal/checkpoint/checkpoint_folder.h"

namespace bimetal::checkpoint {
namespace {

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
