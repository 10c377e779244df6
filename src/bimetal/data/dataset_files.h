#pragma once
// The places of a dataset's files on this machine.

#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace bimetal::data {

/// The files of a dataset that was found: one for each of dataset_file_names(), in that order;
/// those that need not be there may be missing at the end.
struct DatasetFiles {
  std::filesystem::path folder;              ///< where they lie
  std::vector<std::filesystem::path> files;  ///< all of them
  std::string name = {};                     ///< as find_dataset knows it
};

/// A folder train/<class>/… and test/<class>/… of images.
inline constexpr std::string_view kImageFolders = "images";

/// The names of a dataset's files. Each may also be there compressed, as NAME.gz. Empty for
/// kImageFolders, whose files nobody can name before: those are neither fetched nor sent.
/// Error(InvalidArgument) for an unknown dataset, with the nearest known name.
std::vector<std::string> dataset_file_names(const std::string& dataset);

/// So many of them, the first ones, must be there. Errors likewise.
std::size_t required_dataset_files(const std::string& dataset);

/// `path` is the folder with the files; empty: the first of the usual places that exists
/// ($BIMETAL_DATA/<name>, ~/.cache/bimetal/<name>, Debian's package at /usr/share/datasets/<name>).
/// Error(InvalidArgument) for an unknown name or missing files: lists the places searched and how
/// to get them.
DatasetFiles find_dataset(const std::string& name, const std::filesystem::path& path);

}  // namespace bimetal::data
