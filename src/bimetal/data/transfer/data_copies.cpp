#include "bimetal/data/transfer/data_copies.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <system_error>
#include <utility>

#include "bimetal/base/log.h"
#include "bimetal/base/os_files.h"
#include "bimetal/base/temporary_path.h"
#include "bimetal/base/wire.h"
#include "bimetal/data/dataset_files.h"
#include "bimetal/data/transfer/content.h"

namespace bimetal::data {
namespace {

constexpr std::size_t kShownDigits = 16;  // enough to tell two copies apart by eye

void put_content(WireWriter& writer, const std::optional<Content>& content) {
  writer.u8(content.has_value() ? 1 : 0);
  if (!content) return;
  writer.u64(content->size);
  writer.raw(content->digest);
}

std::optional<Content> take_content(WireReader& reader) {
  if (reader.u8() == 0) return std::nullopt;
  Content content;
  content.size = reader.u64();
  std::ranges::copy(reader.raw(content.digest.size()), content.digest.begin());
  return content;
}

std::string describe_file(const FileFact& file) {
  return fmt::format("{} bytes with checksum {} ({})", file.content->size,
                     hex(file.content->digest, kShownDigits), file.path);
}

}  // namespace

comm::Bytes encode_copy(const Copy& copy) {
  WireWriter writer;
  writer.string(copy.host);
  writer.string(copy.missing);
  writer.u32(static_cast<std::uint32_t>(copy.code));
  writer.u32(static_cast<std::uint32_t>(copy.files.size()));
  for (const auto& file : copy.files) {
    writer.string(file.path);
    writer.string(file.identity);
    writer.u64(file.stored_size);
    put_content(writer, file.content);
  }
  return std::move(writer).take();
}

Copy decode_copy(const comm::Bytes& bytes) {
  WireReader reader(bytes);
  Copy copy;
  copy.host = reader.string();
  copy.missing = reader.string();
  copy.code = static_cast<ErrorCode>(
      std::min(reader.u32(), static_cast<std::uint32_t>(ErrorCode::Internal)));
  for (auto files = reader.u32(); files > 0; --files) {
    auto& file = copy.files.emplace_back();
    file.path = reader.string();
    file.identity = reader.string();
    file.stored_size = reader.u64();
    file.content = take_content(reader);
  }
  reader.expect_end();
  return copy;
}

std::string rank_on_host(int rank, std::span<const Copy> copies) {
  return fmt::format("rank {} on {}", rank, copies[static_cast<std::size_t>(rank)].host);
}

int reference_rank(std::span<const Copy> copies) {
  const auto first = std::ranges::find_if(copies, &Copy::there);
  if (first == copies.end()) throw Error(copies.front().code, copies.front().missing);
  return static_cast<int>(first - copies.begin());
}

std::vector<std::size_t> files_to_read(std::span<const Copy> copies, int rank) {
  const auto seen_before = [&](const FileFact& file) {
    if (file.identity.empty()) return false;
    const auto same = [&](const FileFact& other) { return other.identity == file.identity; };
    return std::ranges::any_of(copies.first(static_cast<std::size_t>(rank)), [&](const Copy& copy) {
      return std::ranges::any_of(copy.files, same);
    });
  };
  std::vector<std::size_t> mine;
  const auto& files = copies[static_cast<std::size_t>(rank)].files;
  for (std::size_t i = 0; i < files.size(); ++i) {
    if (!files[i].content && !seen_before(files[i])) mine.push_back(i);
  }
  return mine;
}

void share_contents(std::vector<Copy>& copies) {
  std::map<std::string, Content> known;
  for (const auto& copy : copies) {
    for (const auto& file : copy.files) {
      if (file.content && !file.identity.empty()) known.emplace(file.identity, *file.content);
    }
  }
  for (auto& copy : copies) {
    for (auto& file : copy.files) {
      const auto found = known.find(file.identity);
      if (!file.content && found != known.end()) file.content = found->second;
    }
  }
}

void require_equal_copies(std::span<const Copy> copies, const std::string& dataset) {
  const auto reference = reference_rank(copies);
  const auto& expected = copies[static_cast<std::size_t>(reference)].files;
  for (std::size_t rank = 0; rank < copies.size(); ++rank) {
    const auto& found = copies[rank].files;
    if (!copies[rank].there()) continue;
    if (found.size() != expected.size()) {
      throw Error(ErrorCode::CallMismatch,
                  fmt::format("{} has {} files of the data set '{}', and {} has {}. Copy what is "
                              "missing to the other machine",
                              rank_on_host(static_cast<int>(rank), copies), found.size(), dataset,
                              rank_on_host(reference, copies), expected.size()),
                  static_cast<int>(rank));
    }
    for (std::size_t i = 0; i < found.size(); ++i) {
      if (found[i].content == expected[i].content) continue;
      throw Error(
          ErrorCode::CallMismatch,
          fmt::format("{0} has another copy of the data set '{1}' than {2}: a file is {3} on rank "
                      "{4}, but {5} on rank {6}. Copy the right files to the other machine; or "
                      "move the wrong ones away there, and it is sent the right ones "
                      "([data] send = true)",
                      rank_on_host(static_cast<int>(rank), copies), dataset,
                      rank_on_host(reference, copies), describe_file(expected.at(i)), reference,
                      describe_file(found[i]), rank),
          static_cast<int>(rank));
    }
  }
}

Digest digest_of_copy(const Copy& copy) {
  WireWriter writer;
  for (const auto& file : copy.files) put_content(writer, file.content);
  return digest_of(writer.bytes());
}

std::uint64_t stored_bytes(const Copy& copy) {
  const auto add = [](std::uint64_t sum, const FileFact& file) { return sum + file.stored_size; };
  return std::accumulate(copy.files.begin(), copy.files.end(), std::uint64_t{0}, add);
}

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
    throw Error(error.code(),
                fmt::format("{} cannot keep the data set that it is sent: {}; make room, or set "
                            "BIMETAL_CACHE to a folder with more",
                            delivery.receiver, error.what()));
  }
  for (std::size_t i = 0; i < delivery.files.size(); ++i) {
    const auto& name = delivery.files[i].name;
    if (content_of(fresh.path() / name, meter) == delivery.contents[i]) continue;
    throw Error(ErrorCode::CorruptData,
                fmt::format("what {} was sent as {} is not what the sender's file was found to "
                            "hold: the file was changed meanwhile, or the network or a disk is at "
                            "fault; start the job again",
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
