#include "bimetal/data/transfer/data_delivery.h"

#include <fmt/format.h>

#include <algorithm>
#include <system_error>
#include <utility>

#include "bimetal/base/files.h"
#include "bimetal/base/log.h"
#include "bimetal/data/dataset_files.h"
#include "bimetal/data/transfer/content.h"

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

}  // namespace bimetal::data
