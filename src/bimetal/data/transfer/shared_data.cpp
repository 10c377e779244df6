#include "bimetal/data/transfer/shared_data.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "bimetal/base/error.h"
#include "bimetal/base/typed_text.h"
#include "bimetal/base/wire.h"
#include "bimetal/comm/exchange.h"
#include "bimetal/data/transfer/cache.h"
#include "bimetal/data/transfer/data_copies.h"
#include "bimetal/device/host.h"
#include "bimetal/progress/together.h"

namespace bimetal::data {
namespace {

namespace fs = std::filesystem;

std::string identity_of(const FileStamp& stamp) {
  const auto machine = device::boot_id();
  if (machine.empty()) return "";
  return fmt::format("{}/{}/{}/{}/{}", machine, stamp.device, stamp.number, stamp.size,
                     stamp.modified_ns);
}

FileFact fact_of(const fs::path& file) {
  const auto stamp = file_stamp(file);
  return {
      .path = fs::absolute(file).string(),
      .identity = identity_of(stamp),
      .stored_size = stamp.size,
      .content = stamp.size < kWorthRemembering ? std::nullopt : remembered_content(file, stamp)};
}

class Sharing {
 public:
  Sharing(comm::Group group, const job::DataConfig& config, const SharedDataOptions& options,
          progress::Observer& observer)
      : group_(std::move(group)),
        config_(config),
        options_(options),
        observer_(observer),
        names_(dataset_file_names(config.name)) {}

  DatasetFiles run();

 private:
  Deadline deadline() const { return Deadline::after(options_.timeout); }
  progress::TogetherOptions together(std::string what) const {
    return {std::move(what), options_.timeout, options_.interrupt_requested, {}};
  }

  std::optional<Error> fetch_url();
  std::vector<std::string> url_places();
  std::optional<Error> fetch_and_tell(const std::vector<std::string>& places);
  Copy look(const std::optional<Error>& no_fetch);
  void exchange_copies(Copy mine);
  void read_contents();

  comm::Group group_;
  const job::DataConfig& config_;
  const SharedDataOptions& options_;
  progress::Observer& observer_;
  const std::vector<std::string> names_;
  std::optional<Cache> cache_;  // opened where this rank's path is a URL
  DatasetFiles found_;
  std::vector<Copy> copies_;  // of all ranks
};

/// For each rank, a text that tells in which cache its URL's files are put: the same for ranks that
/// share one. Empty for ranks that have no URL. The URL itself is not sent: it may hold a password.
std::vector<std::string> Sharing::url_places() {
  std::string mine;
  if (is_url(config_.path)) {
    cache_.emplace();
    mine = cache_->id() + hex(digest_of(config_.path));
  }
  return comm::all_gather_text(group_, mine, deadline());
}

/// The lowest rank of each cache fetches. Returns why there is nothing for this rank.
std::optional<Error> Sharing::fetch_and_tell(const std::vector<std::string>& places) {
  const auto& mine = places[static_cast<std::size_t>(group_.rank())];
  const auto leader = std::ranges::find(places, mine) - places.begin();
  const auto failed = std::make_shared<std::optional<Error>>();
  progress::Task task;
  if (!mine.empty() && leader == group_.rank()) {
    task = [failed, cache = *cache_, url = config_.path, names = names_, fetch = options_.fetch,
            patience = options_.timeout](progress::Meter& meter) {
      try {
        fetch_dataset(cache, url, names, fetch, patience, meter);
      } catch (const Error& failure) {
        *failed = failure;  // another rank may have the data
      }
    };
  }
  progress::run_together(group_, task, together("fetching the data"), observer_);
  Copy told;
  if (*failed) {
    told.missing = (*failed)->what();
    told.code = (*failed)->code();
  }
  const auto all = comm::all_gather_bytes(group_, encode_copy(told), deadline());
  if (mine.empty()) return std::nullopt;
  const auto of_leader = decode_copy(all[static_cast<std::size_t>(leader)]);
  if (of_leader.there()) return std::nullopt;
  return Error(of_leader.code, of_leader.missing);
}

std::optional<Error> Sharing::fetch_url() {
  const auto places = url_places();
  const auto none = [](const std::string& place) { return place.empty(); };
  return std::ranges::all_of(places, none) ? std::nullopt : fetch_and_tell(places);
}

/// This rank's copy. The others are told what is wrong with it: one of them may send it another.
Copy Sharing::look(const std::optional<Error>& no_fetch) {
  Copy copy{.host = options_.host_name};
  try {
    if (no_fetch) throw *no_fetch;
    const auto folder =
        cache_ ? cache_->url_folder(digest_of(config_.path)) : fs::path(config_.path);
    found_ = find_dataset(config_.name, folder);
    for (const auto& file : found_.files) copy.files.push_back(fact_of(file));
  } catch (const Error& error) {
    copy.files.clear();
    copy.code = error.code();
    copy.missing = error.what();
  }
  return copy;
}

void Sharing::exchange_copies(Copy mine) {
  std::vector<Copy> copies;
  for (const auto& bytes : comm::all_gather_bytes(group_, encode_copy(mine), deadline())) {
    copies.push_back(decode_copy(bytes));
  }
  copies_ = std::move(copies);
}

/// Reads what nobody knows yet, each file once on each host.
void Sharing::read_contents() {
  auto& mine = copies_[static_cast<std::size_t>(group_.rank())];
  const auto indices = files_to_read(copies_, group_.rank());
  const auto contents = std::make_shared<std::vector<Content>>(indices.size());
  progress::Task task;
  if (!indices.empty()) {
    std::vector<std::pair<fs::path, std::uint64_t>> files;
    for (const auto i : indices) files.emplace_back(found_.files[i], mine.files[i].stored_size);
    task = [contents, files](progress::Meter& meter) {
      for (const auto& [file, size] : files) meter.expect(size);
      for (std::size_t i = 0; i < files.size(); ++i) {
        const auto stamp = file_stamp(files[i].first);
        (*contents)[i] = content_of(files[i].first, meter);
        remember_content(files[i].first, stamp, (*contents)[i]);
      }
    };
  }
  progress::run_together(group_, task, together("checking the data"), observer_);
  for (std::size_t i = 0; i < indices.size(); ++i) mine.files[indices[i]].content = (*contents)[i];
  exchange_copies(mine);
  share_contents(copies_);
}

DatasetFiles Sharing::run() {
  exchange_copies(look(fetch_url()));
  reference_rank(copies_);  // somebody must have it
  if (group_.size() == 1) return found_;
  read_contents();
  require_equal_copies(copies_, config_.name);
  if (std::ranges::all_of(copies_, &Copy::there)) return found_;
  return send_data(group_, {config_, copies_, found_}, together(""), observer_);
}

}  // namespace

DatasetFiles share_dataset(comm::Group group, const job::DataConfig& config,
                           const SharedDataOptions& options, progress::Observer& observer) {
  return Sharing(std::move(group), config, options, observer).run();
}

}  // namespace bimetal::data
