#include "bimetal/data/file_transfer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <memory>
#include <span>
#include <utility>

#include "bimetal/base/error.h"
#include "bimetal/base/os_files.h"

namespace bimetal::data {
namespace {

namespace fs = std::filesystem;

struct CloseFile {
  void operator()(std::FILE* file) const { std::fclose(file); }
};
using File = std::unique_ptr<std::FILE, CloseFile>;

File open_file(const fs::path& path, const char* mode) {
  File file(std::fopen(path.c_str(), mode));
  if (!file) {
    throw system_error(
        fmt::format("cannot {} '{}'", *mode == 'r' ? "read" : "write", path.string()), errno);
  }
  return file;
}

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

void read_piece(std::FILE* file, std::span<std::byte> piece, const fs::path& path) {
  errno = 0;
  if (std::fread(piece.data(), 1, piece.size(), file) == piece.size()) return;
  if (std::ferror(file)) throw system_error(fmt::format("cannot read '{}'", path.string()), errno);
  throw Error(ErrorCode::CorruptData,
              fmt::format("'{}' became shorter while it was sent; leave the data alone while a job "
                          "starts",
                          path.string()));
}

void write_piece(std::FILE* file, std::span<const std::byte> piece, const fs::path& path) {
  if (std::fwrite(piece.data(), 1, piece.size(), file) == piece.size()) return;
  throw system_error(fmt::format("cannot write '{}'", path.string()), errno);
}

void receive_file(Pieces& pieces, const fs::path& path, std::uint64_t size, Meter& meter) {
  const File file = open_file(path, "wb");
  Pieces::Slot* earlier = nullptr;
  const auto finish = [&](Pieces::Slot* slot) {
    if (slot == nullptr) return;
    slot->work.wait();
    write_piece(file.get(), slot->piece(), path);
    meter.advance(slot->size);
  };
  for (std::uint64_t left = size; left > 0;) {
    auto& slot = pieces.take(left);
    pieces.begin(slot);
    left -= slot.size;
    finish(std::exchange(earlier, &slot));
  }
  finish(earlier);
  sync_file(file.get(), path);
}

}  // namespace

void send_files(comm::Group group, const fs::path& folder, const std::vector<SentFile>& files,
                Meter& meter, const TransferOptions& options) {
  Pieces pieces(std::move(group), options);
  for (const auto& sent : files) {
    const auto path = folder / sent.name;
    const File file = open_file(path, "rb");
    for (std::uint64_t left = sent.size; left > 0;) {
      auto& slot = pieces.take(left);
      read_piece(file.get(), slot.piece(), path);
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
                   Meter& meter, const TransferOptions& options) {
  Pieces pieces(std::move(group), options);
  for (const auto& sent : files) receive_file(pieces, folder / sent.name, sent.size, meter);
}

}  // namespace bimetal::data
