#pragma once
// Where a dataset's files lie on this machine.

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace bimetal::data {

/// The files of a dataset that was found: one for each of dataset_file_names(), in that order.
struct DatasetFiles {
  std::filesystem::path folder;
  std::vector<std::filesystem::path> files;
};

/// What a dataset is made of. Each may also lie there compressed, as NAME.gz.
/// Error(InvalidArgument) for an unknown dataset, with the nearest known name.
std::vector<std::string> dataset_file_names(const std::string& dataset);

/// `path` is the folder with the files; empty: the first of the usual places that exists
/// ($BIMETAL_DATA/<name>, ~/.cache/bimetal/<name>, Debian's package at /usr/share/datasets/<name>).
/// Error(InvalidArgument) for an unknown name or missing files: lists the places searched and how
/// to get them.
DatasetFiles find_dataset(const std::string& name, const std::filesystem::path& path);

}  // namespace bimetal::data
