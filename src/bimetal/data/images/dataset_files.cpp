#include "bimetal/data/images/dataset_files.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <cstdlib>

#include "bimetal/base/error.h"
#include "bimetal/base/nearest_name.h"

namespace bimetal::data {
namespace {

namespace fs = std::filesystem;

struct Source {
  std::string_view name;
  std::string_view how_to_get;
};

constexpr std::array<Source, 2> kSources = {{
    {"fashion-mnist",
     "install Debian's package dataset-fashion-mnist, or take the four files from "
     "https://github.com/zalandoresearch/fashion-mnist"},
    {"mnist",
     "take the four files from https://ossci-datasets.s3.amazonaws.com/mnist/ "
     "(train-images-idx3-ubyte.gz and so on)"},
}};

/// In the order of load_dataset: training images and labels, test images and labels.
constexpr std::array<std::string_view, 4> kFileNames = {
    "train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte"};

const Source& source_of(const std::string& name) {
  std::vector<std::string_view> names;
  for (const Source& source : kSources) {
    if (source.name == name) return source;
    names.push_back(source.name);
  }
  throw Error(ErrorCode::InvalidArgument,
              fmt::format("no dataset is called '{}'; did you mean '{}'? Known: {}", name,
                          nearest_name(name, names), fmt::join(names, ", ")));
}

std::vector<fs::path> usual_places(const std::string& name) {
  std::vector<fs::path> places;
  if (const char* root = std::getenv("BIMETAL_DATA")) places.push_back(fs::path(root) / name);
  if (const char* home = std::getenv("HOME")) {
    places.push_back(fs::path(home) / ".cache" / "bimetal" / name);
  }
  places.push_back(fs::path("/usr/share/datasets") / name);
  return places;
}

fs::path find_folder(const Source& source, const fs::path& path) {
  const std::vector<fs::path> places =
      path.empty() ? usual_places(std::string(source.name)) : std::vector<fs::path>{path};
  std::vector<std::string> searched;
  for (const fs::path& place : places) {
    std::error_code ignored;  // what cannot be looked at counts as not there
    if (fs::is_directory(place, ignored)) return place;
    searched.push_back(place.string());
  }
  throw Error(ErrorCode::InvalidArgument,
              fmt::format("dataset '{}' is in none of these folders: {}; {} and name their folder "
                          "as [data] path",
                          source.name, fmt::join(searched, ", "), source.how_to_get));
}

fs::path find_file(const Source& source, const fs::path& folder, std::string_view name) {
  for (const char* suffix : {"", ".gz"}) {
    const fs::path file = folder / (std::string(name) + suffix);
    std::error_code ignored;
    if (fs::exists(file, ignored)) return file;
  }
  throw Error(ErrorCode::InvalidArgument,
              fmt::format("dataset '{}': folder '{}' has no {} (nor {}.gz); {}", source.name,
                          folder.string(), name, name, source.how_to_get));
}

}  // namespace

std::vector<std::string> dataset_file_names(const std::string& dataset) {
  source_of(dataset);  // every one known has the same files
  return {kFileNames.begin(), kFileNames.end()};
}

DatasetFiles find_dataset(const std::string& name, const fs::path& path) {
  const Source& source = source_of(name);
  DatasetFiles found{find_folder(source, path), {}};
  for (const auto& file : kFileNames) found.files.push_back(find_file(source, found.folder, file));
  return found;
}

}  // namespace bimetal::data
