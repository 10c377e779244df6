#include "bimetal/data/dataset_files.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <cstdlib>
#include <optional>
#include <span>

#include "bimetal/base/error.h"
#include "bimetal/base/typed_text.h"

namespace bimetal::data {
namespace {

namespace fs = std::filesystem;

using FileNames = std::span<const std::string_view>;

struct Source {
  std::string_view name;
  FileNames files;
  std::size_t required;  ///< so many of them, the first, must be there
  std::string_view how_to_get;
};

/// In the order of load_dataset: training images and labels, test images and labels.
constexpr std::array<std::string_view, 4> kMnistFiles = {
    "train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte"};

/// In the order of load_tokens.
constexpr std::array<std::string_view, 2> kTokenFiles = {"train.tokens", "test.tokens"};

/// In the order of load_dataset: five parts to train on, one to test with.
constexpr std::array<std::string_view, 6> kCifarFiles = {"data_batch_1.bin", "data_batch_2.bin",
                                                         "data_batch_3.bin", "data_batch_4.bin",
                                                         "data_batch_5.bin", "test_batch.bin"};

constexpr std::array<Source, 5> kSources = {{
    {"fashion-mnist", kMnistFiles, 4,
     "install Debian's package dataset-fashion-mnist, or take the four files from "
     "https://github.com/zalandoresearch/fashion-mnist"},
    {"mnist", kMnistFiles, 4,
     "take the four files from https://ossci-datasets.s3.amazonaws.com/mnist/ "
     "(train-images-idx3-ubyte.gz and so on)"},
    {"cifar-10", kCifarFiles, 6,
     "unpack https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz, whose files lie in its "
     "folder cifar-10-batches-bin"},
    {"tokens", kTokenFiles, 1, "write its files with bimetal data tokenize"},
    {kImageFolders,
     {},
     0,
     "lay its JPEG and PNG files into train/CLASS/ and test/CLASS/ of a folder"},
}};

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
    std::error_code ignored;  // a path that cannot be looked at counts as not there
    if (fs::is_directory(place, ignored)) return place;
    searched.push_back(place.string());
  }
  throw Error(
      ErrorCode::InvalidArgument,
      fmt::format(
          "dataset '{}' is in none of these folders: {}; {} and name their folder as [data] path",
          source.name, fmt::join(searched, ", "), source.how_to_get));
}

std::optional<fs::path> find_file(const fs::path& folder, std::string_view name) {
  for (const char* suffix : {"", ".gz"}) {
    auto file = folder / (std::string(name) + suffix);
    std::error_code ignored;
    if (fs::exists(file, ignored)) return file;
  }
  return std::nullopt;
}

void require_image_folders(const Source& source, const fs::path& folder) {
  for (const auto* part : {"train", "test"}) {
    std::error_code ignored;
    if (fs::is_directory(folder / part, ignored)) continue;
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("dataset '{}': folder '{}' has no folder {} in it; {}", source.name,
                            folder.string(), part, source.how_to_get));
  }
}

}  // namespace

std::vector<std::string> dataset_file_names(const std::string& dataset) {
  const auto files = source_of(dataset).files;
  return {files.begin(), files.end()};
}

std::size_t required_dataset_files(const std::string& dataset) {
  return source_of(dataset).required;
}

DatasetFiles find_dataset(const std::string& name, const fs::path& path) {
  const Source& source = source_of(name);
  DatasetFiles found{find_folder(source, path), {}, name};
  if (name == kImageFolders) require_image_folders(source, found.folder);
  for (const auto file : source.files) {
    if (auto there = find_file(found.folder, file)) {
      found.files.push_back(*std::move(there));
    } else if (found.files.size() < source.required) {
      throw Error(ErrorCode::InvalidArgument,
                  fmt::format("dataset '{}': folder '{}' has no {} (nor {}.gz); {}", source.name,
                              found.folder.string(), file, file, source.how_to_get));
    }
  }
  return found;
}

}  // namespace bimetal::data
