#include "bimetal/train/serve_data.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>
#include <system_error>
#include <utility>

#include "bimetal/base/log.h"
#include "bimetal/base/os_files.h"
#include "bimetal/base/temporary_path.h"
#include "bimetal/data/cache.h"
#include "bimetal/data/checksums.h"
#include "bimetal/data/file_stamp.h"
#include "bimetal/data/file_transfer.h"

namespace bimetal::train {
namespace {

namespace fs = std::filesystem;

constexpr double kGigabyte = 1 << 30;

std::string size_text(std::uint64_t bytes) {
  const auto value = static_cast<double>(bytes);
  return value < kGigabyte ? fmt::format("{:.1f} MiB", value / (1 << 20))
                           : fmt::format("{:.1f} GiB", value / kGigabyte);
}

/// All that one rank's task needs; shared with its thread.
struct Delivery {
  std::string dataset;
  std::vector<data::SentFile> files;
  std::vector<data::Content> contents;
  fs::path source;  ///< the sender's folder
  fs::path target;  ///< the receiver's, in its cache
  std::string receiver;
  data::TransferOptions transfer;
};

/// Whether the folder holds the whole data set, undamaged.
bool holds(const fs::path& folder, const Delivery& delivery, data::Meter& meter) {
  try {
    const auto found = data::find_dataset(delivery.dataset, folder);
    for (std::size_t i = 0; i < found.files.size(); ++i) {
      const auto stamp = data::file_stamp(found.files[i]);
      meter.expect(stamp.size);
      auto content = data::remembered_content(found.files[i], stamp);
      if (content) {
        meter.advance(stamp.size);
      } else {
        content = data::content_of(found.files[i], meter);
        data::remember_content(found.files[i], stamp, *content);
      }
      if (content != delivery.contents[i]) {
        log(LogLevel::warning, "'{}' has been changed: it is sent anew", found.files[i].string());
        return false;
      }
    }
    return true;
  } catch (const Error& error) {
    meter.require_going();
    log(LogLevel::info, "not in the cache: {}", error.what());
    return false;
  }
}

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

/// Complete and checked, or not there at all.
void receive(comm::Group team, const Delivery& delivery, data::Meter& meter) {
  std::uint64_t bytes = 0;
  for (const auto& file : delivery.files) bytes += file.size;
  meter.expect(2 * bytes);  // written, and read again
  const auto parent = delivery.target.parent_path();
  remove_leftovers(parent, delivery.target.filename().string());
  require_room(delivery, bytes);
  TemporaryPath fresh(delivery.target, TemporaryPath::Kind::folder);
  try {
    data::receive_files(std::move(team), fresh.path(), delivery.files, meter, delivery.transfer);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::System) throw;
    throw Error(error.code(),
                fmt::format("{} cannot keep the data set that it is sent: {}; make room, or set "
                            "BIMETAL_CACHE to a folder with more",
                            delivery.receiver, error.what()));
  }
  for (std::size_t i = 0; i < delivery.files.size(); ++i) {
    const auto& name = delivery.files[i].name;
    if (data::content_of(fresh.path() / name, meter) == delivery.contents[i]) continue;
    throw Error(ErrorCode::CorruptData,
                fmt::format("what {} was sent as {} is not what the sender's file was found to "
                            "hold: the file was changed meanwhile, or the network or a disk is at "
                            "fault; start the job again",
                            delivery.receiver, name));
  }
  sync_directory(fresh.path());
  fresh.move_into_place();
}

class Service {
 public:
  Service(comm::Group group, const ServedData& data, const TogetherOptions& options,
          Observer& observer)
      : group_(std::move(group)),
        data_(data),
        options_(options),
        observer_(observer),
        reference_(reference_rank(data.copies)),
        bytes_(stored_bytes(copy_of(reference_))) {}

  data::DatasetFiles run() {
    require_serving(first_without(), data_.config.serve, "[data] serve = false");
    if (!has_copy()) cache_.emplace();
    const auto caches =
        all_gather_text(group_, cache_ ? cache_->id() : "", Deadline::after(options_.timeout));
    prepare();
    const auto receivers = find_receivers(leaders_of(caches));
    if (!receivers.empty()) send_to(receivers);
    return cache_ ? data::find_dataset(data_.config.name, delivery_->target) : data_.found;
  }

 private:
  const Copy& copy_of(int rank) const { return data_.copies[static_cast<std::size_t>(rank)]; }
  bool has_copy() const { return copy_of(group_.rank()).there(); }
  int first_without() const {
    return static_cast<int>(std::ranges::find_if_not(data_.copies, &Copy::there) -
                            data_.copies.begin());
  }
  TogetherOptions doing(std::string what) const {
    auto options = options_;
    options.what = std::move(what);
    return options;
  }

  void require_serving(int rank, bool allowed, const std::string& why_not) const;
  void prepare();
  static std::vector<int> leaders_of(const std::vector<std::string>& caches);
  std::vector<int> find_receivers(const std::vector<int>& leaders);
  void announce(const std::vector<int>& receivers);
  void send_to(const std::vector<int>& receivers);

  comm::Group group_;
  const ServedData& data_;
  const TogetherOptions& options_;
  Observer& observer_;
  const int reference_;
  const std::uint64_t bytes_;
  std::optional<data::Cache> cache_;  // of a rank without a copy
  std::shared_ptr<Delivery> delivery_ = std::make_shared<Delivery>();
};

void Service::require_serving(int rank, bool allowed, const std::string& why_not) const {
  if (allowed) return;
  throw Error(ErrorCode::InvalidArgument,
              fmt::format("{} has no copy of the data set, and is not sent one ({}): {}",
                          rank_on_host(rank, data_.copies), why_not, copy_of(rank).missing),
              rank);
}

/// What is sent is named by the job's dataset, never by what comes over the network.
void Service::prepare() {
  auto& delivery = *delivery_;
  delivery.dataset = data_.config.name;
  delivery.source = data_.found.folder;
  delivery.receiver = rank_on_host(group_.rank(), data_.copies);
  delivery.transfer.chunk_timeout = options_.timeout;
  const auto& reference = copy_of(reference_);
  for (std::size_t i = 0; i < data_.names.size(); ++i) {
    const bool compressed = fs::path(reference.files.at(i).path).extension() == ".gz";
    delivery.files.push_back(
        {data_.names[i] + (compressed ? ".gz" : ""), reference.files[i].stored_size});
    delivery.contents.push_back(*reference.files[i].content);
  }
  if (cache_) delivery.target = cache_->data_folder(digest_of_copy(reference));
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
  Task task;
  if (std::ranges::find(leaders, group_.rank()) != leaders.end()) {
    task = [held, delivery = delivery_](data::Meter& meter) {
      *held = holds(delivery->target, *delivery, meter);
    };
  }
  run_together(group_, task, doing("checking the cached data"), observer_);
  const auto answers =
      all_gather_text(group_, *held ? "held" : "", Deadline::after(options_.timeout));
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
  observer_.on_notice(fmt::format("no data on {} ({}): {} sends {} to be kept there",
                                  fmt::join(who, ", "), missing,
                                  rank_on_host(reference_, data_.copies), size_text(bytes_)));
}

void Service::send_to(const std::vector<int>& receivers) {
  require_serving(
      receivers.front(), static_cast<double>(bytes_) <= data_.config.serve_max_gb * kGigabyte,
      fmt::format("it has {}, more than [data] serve_max_gb = {:g} allows; copy it there, or raise "
                  "that",
                  size_text(bytes_), data_.config.serve_max_gb));
  announce(receivers);
  std::vector<int> members = {reference_};
  members.insert(members.end(), receivers.begin(), receivers.end());
  auto team = group_.subgroup(members);
  auto options = doing(fmt::format("sending {} of data to {} machine{}", size_text(bytes_),
                                   receivers.size(), receivers.size() == 1 ? "" : "s"));
  Task task;
  if (team) {
    options.cancel = [team]() mutable { team.abort("the data set could not be sent"); };
    task = [team, delivery = delivery_](data::Meter& meter) {
      if (team.rank() != 0) return receive(team, *delivery, meter);
      for (const auto& file : delivery->files) meter.expect(file.size);
      data::send_files(team, delivery->source, delivery->files, meter, delivery->transfer);
    };
  }
  run_together(group_, task, options, observer_);
}

}  // namespace

data::DatasetFiles serve_data(comm::Group group, const ServedData& data,
                              const TogetherOptions& options, Observer& observer) {
  return Service(std::move(group), data, options, observer).run();
}

}  // namespace bimetal::train
