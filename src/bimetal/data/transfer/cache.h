#pragma once
// The folder in which data that came over the network stays for the next job: $BIMETAL_CACHE, else
// $XDG_CACHE_HOME/bimetal, else ~/.cache/bimetal. In it
//   data/<digest>/     data sets that another rank has sent, by what they hold
//   urls/<digest>/     data sets fetched from a URL, by the URL
//   checksums/         of big files, so that they are read once (checksums.h)
//   locks/             by which processes take turns (cache_lock.h)
//   id                 a random number, by which ranks notice that they use the same folder
// Whatever lies in it can be removed while no job runs.

#include <filesystem>
#include <string>

#include "bimetal/data/transfer/content.h"

namespace bimetal::data {

/// Where it is, absolute; nothing is created. Error(InvalidArgument) if no variable tells.
std::filesystem::path cache_root();

class Cache {
 public:
  /// Creates what is missing. Error(System) if that cannot be done here, with what to do.
  Cache();

  const std::filesystem::path& root() const noexcept { return root_; }

  /// The same for all processes that use this folder, on whichever machine, and for no others.
  const std::string& id() const noexcept { return id_; }

  std::filesystem::path data_folder(const Digest& contents) const;
  std::filesystem::path url_folder(const Digest& url) const;
  /// `name` is that of a file.
  std::filesystem::path lock_file(const std::string& name) const;

 private:
  std::filesystem::path root_;
  std::string id_;
};

}  // namespace bimetal::data
