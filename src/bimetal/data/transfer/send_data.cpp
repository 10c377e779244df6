
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>
#include <utility>

#include "bimetal/data/transfer/cache.h"
#include "bimetal/data/transfer/data_copies.h"
#include "bimetal/data/transfer/data_delivery.h"
#include "bimetal/data/transfer/file_transfer.h"

namespace bimetal::data {
namespace {

namespace fs = std::filesystem;

/// All that one rank's task needs; shared with its thread.
struct Sending {
  Delivery delivery;
  fs::path source;  ///< the sender's folder
  TransferOptions transfer;
};

class Service {
 public:
  Service(comm::Group group, const SentData& data, const progress::TogetherOptions& options,
          progress::Observer& observer)
      : group_(std::move(group)),
        data_(data),
        options_(options),
        observer_(observer),
        reference_(reference_rank(data.copies)),
        bytes_(stored_bytes(copy_of(reference_))) {}

  DatasetFiles run() {
    require_sending(first_without(), forbidden(data_.config));
    if (!has_copy()) cache_.emplace();
    const auto caches = comm::all_gather_text(group_, cache_ ? cache_->id() : "",
                                              Deadline::after(options_.timeout));
    prepare();
    const auto receivers = find_receivers(leaders_of(caches));
    if (!receivers.empty()) send_to(receivers);
    return cache_ ? find_dataset(data_.config.name, sending_->delivery.target) : data_.found;
  }

 private:
  const Copy& copy_of(int rank) const { return data_.copies[static_cast<std::size_t>(rank)]; }
  bool has_copy() const { return copy_of(group_.rank()).there(); }
  int first_without() const {
    return static_cast<int>(std::ranges::find_if_not(data_.copies, &Copy::there) -
                            data_.copies.begin());
  }
  progress::TogetherOptions doing(std::string what) const {
    auto options = options_;
    options.what = std::move(what);
    return options;
  }

  void require_sending(int rank, const std::optional<std::string>& why_not) const;
  void prepare();
  static std::vector<int> leaders_of(const std::vector<std::string>& caches);
  std::vector<int> find_receivers(const std::vector<int>& leaders);
  void announce(const std::vector<int>& receivers);
  void send_to(const std::vector<int>& receivers);

  comm::Group group_;
  const SentData& data_;
  const progress::TogetherOptions& options_;
  progress::Observer& observer_;
  const int reference_;
  const std::uint64_t bytes_;
  std::optional<Cache> cache_;  // of a rank without a copy
  std::shared_ptr<Sending> sending_ = std::make_shared<Sending>();
};

void Service::require_sending(int rank, const std::optional<std::string>& why_not) const {
  if (!why_not) return;
  throw not_sent(rank_on_host(rank, data_.copies), *why_not, copy_of(rank).missing, rank);
}

void Service::prepare() {
  sending_->delivery =
      delivery_of(copy_of(reference_), data_.config.name, cache_ ? &*cache_ : nullptr,
                  rank_on_host(group_.rank(), data_.copies));
  sending_->source = data_.found.folder;
  sending_->transfer.chunk_timeout = options_.timeout;
}

/// The lowest of the ranks that use the same cache, for each cache.
std::vector<int> Service::leaders_of(const std::vector<std::string>& caches) {
  std::vector<int> leaders;
  for (std::size_t rank = 0; rank < caches.size(); ++rank) {
    const auto before = caches.begin() + static_cast<std::ptrdiff_t>(rank);
    if (caches[rank].empty() || std::find(caches.begin(), before, caches[rank]) != before) continue;
    leaders.push_back(static_cast<int>(rank));
  }
  return leaders;
}

/// Those leaders whose cache does not hold the data set from an earlier job.
std::vector<int> Service::find_receivers(const std::vector<int>& leaders) {
  const auto held = std::make_shared<bool>(false);
  progress::Task task;
  if (std::ranges::find(leaders, group_.rank()) != leaders.end()) {
    task = [held, sending = sending_](progress::Meter& meter) {
      *held = in_cache(sending->delivery, meter);
    };
  }
  progress::run_together(group_, task, doing("checking the cached data"), observer_);
  const auto answers =
      comm::all_gather_text(group_, *held ? "held" : "", Deadline::after(options_.timeout));
  std::vector<int> receivers;
  for (const int rank : leaders) {
    if (answers[static_cast<std::size_t>(rank)].empty()) receivers.push_back(rank);
  }
  return receivers;
}

void Service::announce(const std::vector<int>& receivers) {
  const auto& missing = copy_of(receivers.front()).missing;
  std::vector<std::string> who;
  for (const int rank : receivers) who.push_back(rank_on_host(rank, data_.copies));
  observer_.on_notice(sending_note(fmt::format("{}", fmt::join(who, ", ")), missing,
                                   rank_on_host(reference_, data_.copies), bytes_));
}

void Service::send_to(const std::vector<int>& receivers) {
  require_sending(receivers.front(), too_large(data_.config, bytes_));
  announce(receivers);
  std::vector<int> members = {reference_};
  members.insert(members.end(), receivers.begin(), receivers.end());
  auto team = group_.subgroup(members);
  auto options = doing(fmt::format("sending {} of data to {} machine{}", size_text(bytes_),
                                   receivers.size(), receivers.size() == 1 ? "" : "s"));
  progress::Task task;
  if (team) {
    options.cancel = [team]() mutable { team.abort("the data set could not be sent"); };
    task = [team, sending = sending_](progress::Meter& meter) {
      const auto& files = sending->delivery.files;
      if (team.rank() != 0) {
        return keep_delivery(sending->delivery, meter, [&](const fs::path& folder) {
          receive_files(team, folder, files, meter, sending->transfer);
        });
      }
      for (const auto& file : files) meter.expect(file.size);
      send_files(team, sending->source, files, meter, sending->transfer);
    };
  }
  progress::run_together(group_, task, options, observer_);
}

}  // namespace

DatasetFiles send_data(comm::Group group, const SentData& data,
                       const progress::TogetherOptions& options, progress::Observer& observer) {
  return Service(std::move(group), data, options, observer).run();
}

}  // namespace bimetal::data
