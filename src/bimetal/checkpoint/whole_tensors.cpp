// A checkpoint's tensors put together, one after the other.

#include <utility>
#include <vector>

#include "bimetal/base/atomic_file.h"
#include "bimetal/base/temporary_path.h"
#include "bimetal/checkpoint/checkpoint.h"
#include "bimetal/checkpoint/new_folder.h"
#include "bimetal/checkpoint/open_checkpoint.h"
#include "bimetal/checkpoint/safetensors.h"

namespace bimetal::checkpoint {
namespace {

namespace fs = std::filesystem;

void write_whole(OpenCheckpoint& checkpoint, const TensorIndex& index, const fs::path& file) {
  std::vector<TensorEntry> entries;
  for (const auto& [name, tensor] : index) {
    TensorEntry entry;
    entry.name = name;
    entry.dtype = tensor.dtype;
    entry.shape = tensor.shape;
    entries.push_back(std::move(entry));
  }
  write_safetensors(file, std::move(entries),
                    [&](const std::string& name) { return checkpoint.read(name, index.at(name)); });
}

}  // namespace

SavedWeights write_saved_weights(const fs::path& path, const fs::path& file) {
  auto checkpoint = find_checkpoint(path);
  write_whole(checkpoint, checkpoint.index().model, file);
  return {checkpoint.path(), checkpoint.index().model.size()};
}

fs::path consolidate_checkpoint(const fs::path& path, const fs::path& folder) {
  auto checkpoint = find_checkpoint(path);
  TemporaryPath fresh(place_of_new_folder(folder), TemporaryPath::Kind::folder);
  write_whole(checkpoint, checkpoint.index().model, fresh.path() / kModelFile);
  write_whole(checkpoint, checkpoint.index().optimizer, fresh.path() / kOptimizerFile);
  auto manifest = checkpoint.manifest();
  if (manifest.files.contains(kFeedbackFile)) {
    write_safetensors(fresh.path() / kFeedbackFile,
                      read_safetensors(checkpoint.path() / kFeedbackFile));
  }
  manifest.slices.reset();
  manifest.files = record_files(fresh.path());
  write_file_atomically(fresh.path() / kStateFile, manifest_text(manifest));
  fresh.move_into_place();
  return checkpoint.path();
}

}  // namespace bimetal::checkpoint
