#pragma once
// Data sets that lie at a URL. Who talks to the other side is the caller's choice
// (launch/fetch_url.h asks Python's fsspec); here is how what comes is kept.

#include <chrono>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "bimetal/data/transfer/cache.h"
#include "bimetal/progress/meter.h"

namespace bimetal::data {

struct FetchRequest {
  std::string url;                 ///< of the folder; may hold secrets
  std::vector<std::string> names;  ///< each lies there as NAME or NAME.gz
  std::filesystem::path into;      ///< an empty folder to fill
  std::filesystem::path current;   ///< what an earlier fetch has filled; may not exist
  std::chrono::milliseconds patience{
      std::chrono::minutes(1)};  ///< longest silence of the other side
};

enum class Fetched {
  unchanged,  ///< `current` is as it is at the URL; nothing was fetched
  complete,   ///< all files are whole in `into`, and on the disk
};

/// Errors are Error; their messages hold none of the URL's secrets.
using Fetch = std::function<Fetched(const FetchRequest&, progress::Meter&)>;

/// Brings the dataset's files from `url` into the cache, or finds that they are there unchanged,
/// and returns their folder. Interrupted at any point it leaves what was there before. Of several
/// processes that want the same at the same time one does it, and the others wait for it. Errors:
/// Unsupported without `fetch`; those of CacheLock and of `fetch`.
std::filesystem::path fetch_dataset(const Cache& cache, const std::string& url,
                                    const std::vector<std::string>& names, const Fetch& fetch,
                                    std::chrono::milliseconds patience, progress::Meter& meter);

}  // namespace bimetal::data
