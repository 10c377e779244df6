#include "bimetal/data/transfer/data_link.h"

#include <fmt/format.h>

#include <algorithm>
#include <mutex>
#include <utility>

#include "bimetal/base/error.h"
#include "bimetal/data/transfer/cache.h"
#include "bimetal/data/transfer/data_copies.h"
#include "bimetal/data/transfer/file_transfer.h"
#include "bimetal/data/transfer/shared_data.h"
#include "bimetal/progress/together.h"

namespace bimetal::data {
namespace {

namespace fs = std::filesystem;
namespace ps = parallel::server;
using ps::MessageKind;
using std::chrono::milliseconds;

constexpr std::size_t kPiecesOrdered = 2;
/// A client may order the next piece before the server's system has told that one is gone.
constexpr std::size_t kMostPiecesOut = 4;

MessageKind message_kind(const net::FrameHeader& header) {
  return static_cast<MessageKind>(header.operation);
}

[[noreturn]] void throw_out_of_place() {
  throw Error(ErrorCode::CorruptData, "a message that has no place in the sending of data");
}

std::string name_of_sender(const Copy& copy) {
  return fmt::format("server 0 on {}", copy.host);
}

}  // namespace

/// The files to send, and the notes to tell. Used by the service's thread, except for the notes.
class DataServer::Shelf {
 public:
  Shelf(const DatasetFiles& files, const std::string& sender) : files_(files) {
    copy_.host = sender;
    for (const auto& file : files.files) {
      auto& fact = copy_.files.emplace_back();
      fact.path = file.string();
      fact.stored_size = file_stamp(file).size;
    }
  }

  /// With all contents, or nothing yet. Errors of the reading.
  const Copy* copy() {
    if (!reading_) begin_to_read();
    if (!reading_->done_within(milliseconds(0))) return nullptr;
    for (std::size_t i = 0; i < copy_.files.size(); ++i) copy_.files[i].content = (*contents_)[i];
    return &copy_;
  }
  const progress::Meter& meter() const { return reading_->meter(); }
  const fs::path& file(std::size_t index) const { return files_.files.at(index); }

  void note_sending(const Copy& to) {
    const std::scoped_lock lock(mutex_);
    notes_.push_back(sending_note(to.host, to.missing, name_of_sender(copy_), stored_bytes(copy_)));
  }
  std::vector<std::string> take_notes() {
    const std::scoped_lock lock(mutex_);
    return std::exchange(notes_, {});
  }

 private:
  void begin_to_read() {
    contents_ = std::make_shared<std::vector<Content>>();
    reading_ = std::make_unique<progress::RunningTask>(
        [contents = contents_, files = files_.files](progress::Meter& meter) {
          for (const auto& file : files) contents->push_back(known_content(file, meter));
        });
  }

  const DatasetFiles files_;
  Copy copy_;
  std::shared_ptr<std::vector<Content>> contents_;
  std::unique_ptr<progress::RunningTask> reading_;
  std::mutex mutex_;
  std::vector<std::string> notes_;
};

class DataServer::Session final : public ps::LinkServer::Session {
 public:
  Session(ps::Link& link, std::shared_ptr<Shelf> shelf) : link_(link), shelf_(std::move(shelf)) {}

  std::span<std::byte> place(const net::FrameHeader&) override { throw_out_of_place(); }

  void on_message(const net::FrameHeader& header, std::span<const std::byte> body) override {
    if (message_kind(header) == MessageKind::ask_data && !asker_) {
      asker_ = decode_copy({body.begin(), body.end()});
      on_tick();
    } else if (message_kind(header) == MessageKind::order_data && offered_) {
      send_piece(header);
    } else {
      throw_out_of_place();
    }
  }

  void on_tick() override {
    if (!asker_ || offered_) return;
    offered_ = shelf_->copy();
    if (offered_) return link_.send(MessageKind::offer_data, {}, encode_copy(*offered_));
    net::FrameHeader header;
    header.sequence = shelf_->meter().done();
    header.count = shelf_->meter().expected();
    link_.send(MessageKind::checking_data, header);
  }

 private:
  void send_piece(const net::FrameHeader& order) {
    if (!reader_ || order.part != file_) open(order.part);
    std::erase_if(out_, [](const auto& piece) { return piece.expired(); });
    const auto size = offered_->files[file_].stored_size;
    if (order.sequence != offset_ ||
        order.count > std::min<std::uint64_t>(size - offset_, kDataPiece) ||
        out_.size() >= kMostPiecesOut) {
      throw_out_of_place();
    }
    const auto piece = std::make_shared<ps::Body>(order.count);
    reader_->read(*piece);
    offset_ += order.count;
    out_.push_back(piece);
    net::FrameHeader header;
    header.part = order.part;
    header.sequence = order.sequence;
    link_.send_bulk(MessageKind::data, header, *piece, piece);
  }

  void open(std::uint32_t file) {
    if (file >= offered_->files.size()) throw_out_of_place();
    if (!reader_) shelf_->note_sending(*asker_);
    reader_.emplace(shelf_->file(file));
    file_ = file;
    offset_ = 0;
  }

  ps::Link& link_;
  const std::shared_ptr<Shelf> shelf_;
  std::optional<Copy> asker_;
  const Copy* offered_ = nullptr;
  std::optional<PieceReader> reader_;
  std::uint32_t file_ = 0;
  std::uint64_t offset_ = 0;
  std::vector<std::weak_ptr<ps::Body>> out_;  ///< pieces that have not left yet
};

DataServer::DataServer(const net::Endpoint& listen, const ps::Credentials& credentials,
                       const DatasetFiles& files, const std::string& sender, milliseconds timeout)
    : shelf_(std::make_shared<Shelf>(files, sender)),
      server_(listen, credentials, timeout,
              [shelf = shelf_](ps::Link& link) { return std::make_unique<Session>(link, shelf); }) {
}

DataServer::~DataServer() = default;

net::Endpoint DataServer::endpoint() const {
  return server_.endpoint();
}

std::vector<std::string> DataServer::take_notes() {
  return shelf_->take_notes();
}

DataClient::DataClient(const std::string& server, milliseconds timeout, progress::Meter& meter)
    : LinkClient(server), timeout_(timeout), meter_(meter) {}

void DataClient::connect(const net::Endpoint& server, const ps::Credentials& credentials) {
  LinkClient::connect(server, credentials, deadline());
}

Copy DataClient::ask(const Copy& own) {
  link().send(MessageKind::ask_data, {}, encode_copy(own));
  auto patience = deadline();
  while (!offer_) {
    const auto before = std::pair(checked_, to_check_);
    wait(patience, [&] {
      meter_.require_going();
      return offer_ || std::pair(checked_, to_check_) != before;
    });
    if (to_check_ > before.second) meter_.expect(to_check_ - before.second);
    if (checked_ > before.first) meter_.advance(checked_ - before.first);
    patience = deadline();
  }
  return *offer_;
}

std::span<std::byte> DataClient::place(const net::FrameHeader& header) {
  const auto piece = std::ranges::find_if_not(ordered_, &Piece::arrived);
  if (piece == ordered_.end() || header.part != piece->file || header.sequence != piece->offset) {
    throw_out_of_place();
  }
  return piece->bytes;
}

void DataClient::on_answer(const net::FrameHeader& header, std::span<const std::byte> body) {
  if (message_kind(header) == MessageKind::data) {
    std::ranges::find_if_not(ordered_, &Piece::arrived)->arrived = true;
  } else if (message_kind(header) == MessageKind::checking_data) {
    checked_ = header.sequence;
    to_check_ = header.count;
  } else if (message_kind(header) == MessageKind::offer_data) {
    offer_ = decode_copy({body.begin(), body.end()});
  } else {
    throw_out_of_place();
  }
}

/// So that while one is written another is on its way.
void DataClient::order_pieces(const std::vector<SentFile>& files) {
  while (ordered_.size() < kPiecesOrdered && next_file_ < files.size()) {
    const auto left = files[next_file_].size - next_offset_;
    if (left == 0) {
      ++next_file_;
      next_offset_ = 0;
      continue;
    }
    net::FrameHeader header;
    header.part = next_file_;
    header.sequence = next_offset_;
    header.count = std::min<std::uint64_t>(left, kDataPiece);
    ordered_.push_back({header.part, header.sequence, ps::Body(header.count)});
    next_offset_ += header.count;
    link().send(MessageKind::order_data, header);
  }
}

ps::Body DataClient::next_piece(const std::vector<SentFile>& files) {
  order_pieces(files);
  try {
    wait(deadline(), [this] {
      meter_.require_going();
      return ordered_.front().arrived;
    });
  } catch (const Error& error) {
    if (error.code() != ErrorCode::System) throw;
    // It is the server's disk that fails, not the one here.
    throw Error(ErrorCode::PeerLost, fmt::format("{}: {}", name(), error.what()));
  }
  auto bytes = std::move(ordered_.front().bytes);
  ordered_.pop_front();
  order_pieces(files);
  return bytes;
}

void DataClient::receive(const std::vector<SentFile>& files, const fs::path& folder) {
  std::vector<PieceWriter> written;
  for (const auto& file : files) {
    auto& writer = written.emplace_back(folder / file.name);
    for (std::uint64_t left = file.size; left > 0;) {
      const auto piece = next_piece(files);
      writer.write(piece);
      left -= piece.size();
      meter_.advance(piece.size());
    }
  }
  // Only now: it may take long, and nobody listens to the server meanwhile.
  for (auto& writer : written) writer.sync();
}

}  // namespace bimetal::data
