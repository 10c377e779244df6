#include "bimetal/data/transfer/fetch.h"

#include <fmt/format.h>

#include "bimetal/base/error.h"
#include "bimetal/base/os_files.h"
#include "bimetal/base/temporary_path.h"
#include "bimetal/base/url.h"
#include "bimetal/data/transfer/cache_lock.h"

namespace bimetal::data {

std::filesystem::path fetch_dataset(const Cache& cache, const std::string& url,
                                    const std::vector<std::string>& names, const Fetch& fetch,
                                    std::chrono::milliseconds patience, progress::Meter& meter) {
  if (!fetch) {
    throw Error(ErrorCode::Unsupported,
                fmt::format("'{}' is a URL, which this program does not fetch: name a folder",
                            without_secrets(url)));
  }
  if (names.empty()) {
    throw Error(
        ErrorCode::InvalidArgument,
        fmt::format("folders of images are not fetched from a URL such as '{}': unpack them "
                    "into a folder, and name that as [data] path",
                    without_secrets(url)));
  }
  const auto folder = cache.url_folder(digest_of(url));
  CacheLock turn(cache, folder.filename().string(), patience, meter);
  if (turn.done_meanwhile() && std::filesystem::exists(folder)) return folder;
  remove_leftovers(folder.parent_path(), folder.filename().string());
  TemporaryPath fresh(folder, TemporaryPath::Kind::folder);
  if (fetch({url, names, fresh.path(), folder, patience}, meter) == Fetched::complete) {
    sync_directory(fresh.path());
    fresh.move_into_place();
  }
  turn.mark_done();
  return folder;
}

}  // namespace bimetal::data
