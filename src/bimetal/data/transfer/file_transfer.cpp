#include "bimetal/data/transfer/file_transfer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <span>
#include <utility>

#include "bimetal/base/error.h"
#include "bimetal/base/files.h"
#include "bimetal/base/typed_text.h"
#include "bimetal/data/transfer/cache.h"

namespace bimetal::data {
namespace {

namespace fs = std::filesystem;

/// Two buffers in turn: while one is on its way, the other is read or written.
class Pieces {
 public:
  Pieces(comm::Group group, const TransferOptions& options)
      : group_(std::move(group)), options_(options) {
    for (auto& slot : slots_) slot.bytes.resize(options.chunk_bytes);
  }
  ~Pieces() {
    // The fabric must be through with the buffers before they go.
    if (std::ranges::all_of(slots_, [](const Slot& slot) { return slot.work.done(); })) return;
    group_.abort("the transfer of files has failed");
    for (auto& slot : slots_) slot.work.wait_until(Deadline::after(options_.chunk_timeout));
  }
  Pieces(const Pieces&) = delete;
  Pieces& operator=(const Pieces&) = delete;

  struct Slot {
    std::vector<std::byte> bytes;
    std::size_t size = 0;
    comm::Work work;

    std::span<std::byte> piece() { return std::span(bytes).first(size); }
  };

  /// The one used longest ago, not on its way any more, for a piece of this size.
  Slot& take(std::uint64_t left) {
    Slot& slot = slots_[next_++ % slots_.size()];
    slot.work.wait();
    slot.size = static_cast<std::size_t>(std::min<std::uint64_t>(left, slot.bytes.size()));
    return slot;
  }

  void begin(Slot& slot) {
    slot.work = group_.broadcast({slot.bytes.data(), slot.size, comm::DType::uint8}, 0,
                                 Deadline::after(options_.chunk_timeout));
  }

 private:
  comm::Group group_;
  const TransferOptions options_;
  std::array<Slot, 2> slots_;
  std::size_t next_ = 0;
};

void receive_file(Pieces& pieces, const fs::path& path, std::uint64_t size,
                  progress::Meter& meter) {
  PieceWriter file(path);
  Pieces::Slot* earlier = nullptr;
  const auto finish = [&](Pieces::Slot* slot) {
    if (slot == nullptr) return;
    slot->work.wait();
    file.write(slot->piece());
    meter.advance(slot->size);
  };
  for (std::uint64_t left = size; left > 0;) {
    auto& slot = pieces.take(left);
    pieces.begin(slot);
    left -= slot.size;
    finish(std::exchange(earlier, &slot));
  }
  finish(earlier);
  file.sync();
}

}  // namespace

void send_files(comm::Group group, const fs::path& folder, const std::vector<SentFile>& files,
                progress::Meter& meter, const TransferOptions& options) {
  Pieces pieces(std::move(group), options);
  for (const auto& sent : files) {
    PieceReader file(folder / sent.name);
    for (std::uint64_t left = sent.size; left > 0;) {
      auto& slot = pieces.take(left);
      file.read(slot.piece());
      pieces.begin(slot);
      left -= slot.size;
      meter.advance(slot.size);
    }
  }
  // Both may still be on their way.
  pieces.take(0);
  pieces.take(0);
}

void receive_files(comm::Group group, const fs::path& folder, const std::vector<SentFile>& files,
                   progress::Meter& meter, const TransferOptions& options) {
  Pieces pieces(std::move(group), options);
  for (const auto& sent : files) receive_file(pieces, folder / sent.name, sent.size, meter);
}

namespace {

std::FILE* open_file(const fs::path& path, const char* mode) {
  if (std::FILE* file = std::fopen(path.c_str(), mode)) return file;
  throw system_error(fmt::format("cannot {} '{}'", *mode == 'r' ? "read" : "write", path.string()),
                     errno);
}

}  // namespace

PieceReader::PieceReader(fs::path path) : path_(std::move(path)), file_(open_file(path_, "rb")) {}

void PieceReader::read(std::span<std::byte> piece) {
  errno = 0;
  if (std::fread(piece.data(), 1, piece.size(), file_.get()) == piece.size()) return;
  if (std::ferror(file_.get())) {
    throw system_error(fmt::format("cannot read '{}'", path_.string()), errno);
  }
  throw Error(
      ErrorCode::CorruptData,
      fmt::format("'{}' became shorter while it was sent; leave the data alone while a job starts",
                  path_.string()));
}

PieceWriter::PieceWriter(fs::path path) : path_(std::move(path)), file_(open_file(path_, "wb")) {}

void PieceWriter::write(std::span<const std::byte> piece) {
  if (std::fwrite(piece.data(), 1, piece.size(), file_.get()) == piece.size()) return;
  throw system_error(fmt::format("cannot write '{}'", path_.string()), errno);
}

void PieceWriter::sync() {
  sync_file(file_.get(), path_);
}

std::filesystem::path fetch_dataset(const Cache& cache, const std::string& url,
                                    const std::vector<std::string>& names, const Fetch& fetch,
                                    std::chrono::milliseconds patience, progress::Meter& meter) {
  if (!fetch) {
    throw Error(ErrorCode::Unsupported,
                fmt::format("'{}' is a URL, which this program does not fetch: name a folder",
                            without_secrets(url)));
  }
  if (names.empty()) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("folders of images are not fetched from a URL such as '{}': unpack "
                            "them into a folder, and name that as [data] path",
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
