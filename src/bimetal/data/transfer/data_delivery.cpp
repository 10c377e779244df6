#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>
#include <system_error>
#include <utility>

#include "bimetal/base/files.h"
#include "bimetal/base/log.h"
#include "bimetal/data/dataset_files.h"
#include "bimetal/data/transfer/cache.h"
#include "bimetal/data/transfer/data_copies.h"
#include "bimetal/data/transfer/file_transfer.h"
#include "bimetal/data/transfer/shared_data.h"

namespace bimetal::data {
namespace {

namespace fs = std::filesystem;

constexpr double kGigabyte = 1 << 30;

void require_room(const Delivery& delivery, std::uint64_t bytes) {
  std::error_code unknown;  // then the writing tells
  const auto space = fs::space(delivery.target.parent_path(), unknown);
  if (unknown || space.available >= bytes) return;
  throw Error(ErrorCode::System,
              fmt::format("{} has no room for the data set: it needs {} in '{}', where {} are "
                          "free; make room, or set BIMETAL_CACHE to a folder with more",
                          delivery.receiver, size_text(bytes),
                          delivery.target.parent_path().string(), size_text(space.available)));
}

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

Delivery delivery_of(const Copy& copy, const std::string& dataset, const Cache* cache,
                     std::string receiver) {
  Delivery delivery;
  delivery.dataset = dataset;
  delivery.receiver = std::move(receiver);
  const auto names = dataset_file_names(dataset);
  const auto whole = [](const FileFact& file) { return file.content.has_value(); };
  if (copy.files.size() < required_dataset_files(dataset) || copy.files.size() > names.size() ||
      !std::ranges::all_of(copy.files, whole)) {
    throw Error(ErrorCode::CorruptData,
                fmt::format("{} was offered no whole data set", delivery.receiver));
  }
  for (std::size_t i = 0; i < copy.files.size(); ++i) {
    const bool compressed = fs::path(copy.files[i].path).extension() == ".gz";
    delivery.files.push_back({names[i] + (compressed ? ".gz" : ""), copy.files[i].stored_size});
    delivery.contents.push_back(*copy.files[i].content);
  }
  if (cache) delivery.target = cache->data_folder(digest_of_copy(copy));
  return delivery;
}

bool in_cache(const Delivery& delivery, progress::Meter& meter) {
  try {
    const auto found = find_dataset(delivery.dataset, delivery.target);
    if (found.files.size() != delivery.files.size()) return false;
    for (std::size_t i = 0; i < found.files.size(); ++i) {
      if (known_content(found.files[i], meter) == delivery.contents[i]) continue;
      log(LogLevel::warning, "'{}' has been changed: it is sent anew", found.files[i].string());
      return false;
    }
    return true;
  } catch (const Error& error) {
    meter.require_going();
    log(LogLevel::info, "not in the cache: {}", error.what());
    return false;
  }
}

void keep_delivery(const Delivery& delivery, progress::Meter& meter,
                   const std::function<void(const fs::path&)>& receive) {
  std::uint64_t bytes = 0;
  for (const auto& file : delivery.files) bytes += file.size;
  meter.expect(2 * bytes);  // written, and read again
  const auto parent = delivery.target.parent_path();
  remove_leftovers(parent, delivery.target.filename().string());
  require_room(delivery, bytes);
  TemporaryPath fresh(delivery.target, TemporaryPath::Kind::folder);
  try {
    receive(fresh.path());
  } catch (const Error& error) {
    if (error.code() != ErrorCode::System) throw;
    throw Error(error.code(), fmt::format("{} cannot keep the data set that it is sent: {}; make "
                                          "room, or set BIMETAL_CACHE to a folder with more",
                                          delivery.receiver, error.what()));
  }
  for (std::size_t i = 0; i < delivery.files.size(); ++i) {
    const auto& name = delivery.files[i].name;
    if (content_of(fresh.path() / name, meter) == delivery.contents[i]) continue;
    throw Error(
        ErrorCode::CorruptData,
        fmt::format(
            "what {} was sent as {} is not what the sender's file was found to hold: the file was "
            "changed meanwhile, or the network or a disk is at fault; start the job again",
            delivery.receiver, name));
  }
  sync_directory(fresh.path());
  fresh.move_into_place();
}

std::optional<std::string> forbidden(const job::DataConfig& config) {
  if (config.name == kImageFolders) {
    return "folders of images are not sent: copy the folder there, or mount it, and name it as "
           "[data] path or with --data-path";
  }
  if (config.send) return std::nullopt;
  return "[data] send = false";
}

std::optional<std::string> too_large(const job::DataConfig& config, std::uint64_t bytes) {
  if (static_cast<double>(bytes) <= config.send_max_gb * kGigabyte) return std::nullopt;
  return fmt::format(
      "it has {}, more than [data] send_max_gb = {:g} allows; copy it there, or raise that",
      size_text(bytes), config.send_max_gb);
}

Error not_sent(const std::string& receiver, const std::string& why_not, const std::string& missing,
               std::optional<int> rank) {
  return {ErrorCode::InvalidArgument,
          fmt::format("{} has no copy of the data set, and is not sent one ({}): {}", receiver,
                      why_not, missing),
          rank};
}

std::string sending_note(const std::string& receivers, const std::string& missing,
                         const std::string& sender, std::uint64_t bytes) {
  return fmt::format("no data on {} ({}): {} sends {} to be kept there", receivers, missing, sender,
                     size_text(bytes));
}

std::string size_text(std::uint64_t bytes) {
  const auto value = static_cast<double>(bytes);
  return value < kGigabyte ? fmt::format("{:.1f} MiB", value / (1 << 20))
                           : fmt::format("{:.1f} GiB", value / kGigabyte);
}

DatasetFiles send_data(comm::Group group, const SentData& data,
                       const progress::TogetherOptions& options, progress::Observer& observer) {
  return Service(std::move(group), data, options, observer).run();
}

}  // namespace bimetal::data
