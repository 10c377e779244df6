#include "bimetal/checkpoint/open_checkpoint.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/api/include/torch/types.h>

#include <algorithm>
#include <optional>
#include <string_view>
#include <system_error>
#include <utility>

#include "bimetal/base/error.h"
#include "bimetal/base/log.h"
#include "bimetal/checkpoint/checkpoint_folder.h"
#include "bimetal/checkpoint/checkpoint_manifest.h"
#include "bimetal/checkpoint/model_file.h"
#include "bimetal/checkpoint/optimizer_state.h"
#include "bimetal/checkpoint/slices/slice_file.h"

namespace bimetal::checkpoint {
namespace {

namespace fs = std::filesystem;

OpenCheckpoint verify(const fs::path& path) {
  auto manifest = read_manifest(path);
  verify_files(manifest, path);
  return {path, std::move(manifest)};
}

constexpr std::string_view kLoopPrefix = "checkpoint_";  // of a train loop in Python, on Ray

std::vector<std::string> names_in(const fs::path& dir) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator entry(dir, error), end; !error && entry != end;
       entry.increment(error)) {
    names.push_back(entry->path().filename().string());
  }
  std::ranges::sort(names);
  return names;
}

bool is_of_train_loop(const std::string& name) {
  return name.starts_with(kLoopPrefix) && name.size() > kLoopPrefix.size() &&
         name.find_first_not_of("0123456789", kLoopPrefix.size()) == std::string::npos;
}

/// A training loop may put anything into its checkpoints. This is the newest of them that is a
/// checkpoint of ours, or holds some.
std::optional<fs::path> newest_of_train_loop(const fs::path& dir) {
  auto names = names_in(dir);
  std::erase_if(names, [](const auto& name) { return !is_of_train_loop(name); });
  std::error_code unknown;
  for (auto name = names.rbegin(); name != names.rend(); ++name) {
    const auto folder = dir / *name;
    if (fs::exists(folder / kStateFile, unknown) || !list_checkpoints(folder).empty()) {
      return folder;
    }
  }
  return std::nullopt;
}

/// For people who took it for a folder of checkpoints.
std::string what_is_there(const fs::path& dir) {
  constexpr std::size_t kMostNames = 5;
  std::error_code unknown;
  if (!fs::exists(dir, unknown)) return "there is no such folder";
  auto names = names_in(dir);
  if (names.empty()) return "it is empty";
  if (fs::exists(dir / "config.json", unknown) && fs::exists(dir / "model.safetensors", unknown)) {
    return "it has a model in Hugging Face's form, which `bimetal generate` and model.weights take";
  }
  const auto loop = std::ranges::find_if(names, is_of_train_loop);
  if (loop != names.end()) {
    const auto inside = names_in(dir / *loop);
    return fmt::format(
        "it has checkpoints of a train loop ({}, with {}), which the program that saved them "
        "loads; a loop whose checkpoints hold Bimetal's own (step-…) is taken here",
        *loop, inside.empty() ? "nothing in it" : fmt::format("{}", fmt::join(inside, ", ")));
  }
  const bool more = names.size() > kMostNames;
  names.resize(std::min(names.size(), kMostNames));
  return fmt::format("it has {}{}, and no step-…", fmt::join(names, ", "), more ? ", …" : "");
}

OpenCheckpoint newest_intact(const fs::path& dir) try {
  const auto found = list_checkpoints(dir);
  if (found.empty()) {
    if (const auto loops = newest_of_train_loop(dir)) return find_checkpoint(*loops);
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("there is no checkpoint in {}: {}", dir.string(), what_is_there(dir)));
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

namespace fs = std::filesystem;

InspectedFile inspect_file(const fs::path& path, const FileRecord& expected) {
  InspectedFile file{.name = path.filename().string(), .bytes = expected.size};
  try {
    verify_file(path, expected);
    file.tensors = SafetensorsFile(path).header().entries.size();
  } catch (const Error& error) {
    file.flaw = error.what();
  }
  return file;
}

void count_model(const Manifest& manifest, Inspected& found) {
  auto index = manifest.slices ? manifest.slices->model : TensorIndex();
  if (!manifest.slices) {
    index = index_of(SafetensorsFile(found.path / kModelFile).header(), kModelFile);
  }
  found.tensors = index.size();
  for (const auto& [name, tensor] : index) found.elements += elements_of(tensor.shape);
}

Inspected inspect_one(const fs::path& path) {
  Inspected found{.path = path};
  try {
    const auto manifest = read_manifest(path);
    found.sequence = manifest.sequence;
    found.state = manifest.state;
    found.optimizer = manifest.optimizer;
    found.of_loop = !manifest.loop.empty();
    found.ranks = manifest.slices ? manifest.slices->ranks : 0;
    for (const auto& [name, expected] : manifest.files) {
      found.files.push_back(inspect_file(path / name, expected));
    }
    if (found.intact()) count_model(manifest, found);
  } catch (const Error& error) {
    found.flaw = error.what();
  }
  return found;
}

}  // namespace

OpenCheckpoint::OpenCheckpoint(fs::path path, Manifest manifest)
    : path_(std::move(path)), manifest_(std::move(manifest)) {
  if (manifest_.slices) {
    index_ = *manifest_.slices;
    return;
  }
  index_.model = index_of(file(kModelFile).header(), kModelFile);
  index_.optimizer = index_of(file(kOptimizerFile).header(), kOptimizerFile);
}

std::string OpenCheckpoint::model_origin() const {
  return (manifest_.slices ? path_ : path_ / kModelFile).string();
}

std::string OpenCheckpoint::optimizer_origin() const {
  return (manifest_.slices ? path_ : path_ / kOptimizerFile).string();
}

SafetensorsFile& OpenCheckpoint::file(const std::string& name) {
  const auto found = files_.find(name);
  if (found != files_.end()) return found->second;
  return files_.emplace(name, SafetensorsFile(path_ / name)).first->second;
}

torch::Tensor OpenCheckpoint::read(const std::string& name, const StoredTensor& tensor,
                                   const Slice& wanted) {
  auto values = torch::empty(wanted.size, torch::dtype(tensor.dtype));
  const auto width = c10::elementSize(tensor.dtype);
  const std::span bytes(static_cast<std::byte*>(values.data_ptr()), values.nbytes());
  for (const auto& stored : tensor.slices) {
    const auto common = overlaps(stored.slice, wanted, tensor.shape);
    if (common.empty()) continue;
    auto& from = file(stored.file);
    const auto& entry = from.entry(stored.key);
    if (entry.dtype != tensor.dtype || entry.shape != stored.slice.size) {
      refuse_safetensors((path_ / stored.file).string(),
                         fmt::format("tensor '{}' is not what {} says", stored.key, kStateFile));
    }
    for (const auto& run : common) {
      from.read(entry, run.from,
                bytes.subspan(static_cast<std::size_t>(run.to) * width,
                              static_cast<std::size_t>(run.count) * width));
    }
  }
  return values;
}

torch::Tensor OpenCheckpoint::read(const std::string& name, const StoredTensor& tensor) {
  return read(name, tensor, whole_slice(tensor.shape));
}

TensorMap OpenCheckpoint::read_all(const TensorIndex& index) {
  TensorMap all;
  for (const auto& [name, tensor] : index) all[name] = read(name, tensor);
  return all;
}

std::vector<comm::NamedValues> OpenCheckpoint::error_feedback() const {
  if (!manifest_.files.contains(kFeedbackFile)) return {};
  return feedback_values(read_safetensors(path_ / kFeedbackFile));
}

TensorIndex require_same_model(const OpenCheckpoint& checkpoint, const task::ModelState& model) {
  auto stored = checkpoint.index().model;
  for (const auto& name : model.other_names) stored.erase(name);
  require_same_tensors(without_values(stored), model_tensors(model), checkpoint.model_origin());
  return stored;
}

void require_same_kind(const OpenCheckpoint& checkpoint, const OptimizerFacts& mine) {
  const auto& saved = checkpoint.manifest().optimizer;
  if (saved == mine.kind) return;
  throw Error(ErrorCode::InvalidArgument,
              fmt::format("{} was saved with the optimizer '{}', this job uses '{}'",
                          checkpoint.path().string(), saved, mine.kind));
}

void log_changed_settings(const OpenCheckpoint& checkpoint, const OptimizerFacts& mine) {
  const auto& saved = checkpoint.manifest().optimizer_groups;
  if (saved == mine.groups) return;
  log(LogLevel::info, "{} was saved with the hyper-parameters {}; this job goes on with {}",
      checkpoint.path().string(), saved.dump(), mine.groups.dump());
}

OpenCheckpoint find_checkpoint(const fs::path& path) {
  std::error_code error;
  const bool is_one = fs::exists(path / kStateFile, error);
  if (error) throw system_error("cannot read " + path.string(), error);
  return is_one ? verify(path) : newest_intact(path);
}

bool Inspected::intact() const noexcept {
  return flaw.empty() &&
         std::ranges::all_of(files, [](const auto& file) { return file.flaw.empty(); });
}

std::vector<Inspected> inspect_checkpoints(const fs::path& path) {
  std::error_code error;
  const bool is_one = fs::exists(path / kStateFile, error);
  if (error) throw system_error("cannot read " + path.string(), error);
  if (is_one) return {inspect_one(path)};
  std::vector<Inspected> all;
  for (const auto& entry : list_checkpoints(path)) all.push_back(inspect_one(entry.path));
  if (!all.empty()) return all;
  throw Error(ErrorCode::InvalidArgument,
              fmt::format("there is no checkpoint in {}", path.string()));
}

}  // namespace bimetal::checkpoint
