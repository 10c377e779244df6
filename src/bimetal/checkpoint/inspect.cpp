#include "bimetal/checkpoint/inspect.h"

#include <fmt/format.h>

#include <algorithm>
#include <system_error>

#include "bimetal/base/error.h"
#include "bimetal/checkpoint/checkpoint_folder.h"
#include "bimetal/checkpoint/checkpoint_manifest.h"
#include "bimetal/checkpoint/slices/slice_file.h"

namespace bimetal::checkpoint {
namespace {

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
