#pragma once
// Data sets for processes that have none, in a job with parameter servers: one process sends its
// copy to all that ask, at an address of its own, for as long as the job runs. docs/data.md;
// messages: docs/protocol.md.

#include <chrono>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bimetal/data/dataset_files.h"
#include "bimetal/data/transfer/data_copies.h"
#include "bimetal/data/transfer/file_transfer.h"
#include "bimetal/net/endpoint.h"
#include "bimetal/parallel/server/link/link_server.h"
#include "bimetal/progress/observer.h"

namespace bimetal::data {

/// Longest piece. A receiver has two of them on their way to it.
inline constexpr std::size_t kDataPiece = std::size_t{4} << 20;

/// Serves from threads of its own until it is destroyed. Files are read when they are asked for:
/// their checksums once, by the first that asks.
class DataServer {
 public:
  /// `sender` is this process, for messages. Receivers that say nothing for `timeout` are given up.
  /// Errors of LinkServer.
  DataServer(const net::Endpoint& listen, const parallel::server::Credentials& credentials,
             const DatasetFiles& files, const std::string& sender,
             std::chrono::milliseconds timeout);
  ~DataServer();

  net::Endpoint endpoint() const;

  /// News for the user since the last call. Thread-safe.
  std::vector<std::string> take_notes();

 private:
  class Shelf;
  class Session;

  std::shared_ptr<Shelf> shelf_;
  parallel::server::LinkServer server_;
};

/// The other side. Use from one thread.
class DataClient final : public parallel::server::LinkClient {
 public:
  /// `timeout`: for each answer. Aborted once `meter` is stopped.
  DataClient(const std::string& server, std::chrono::milliseconds timeout, progress::Meter& meter);

  void connect(const net::Endpoint& server, const parallel::server::Credentials& credentials);

  /// The server's copy. `own` tells it who asks, and why. The meter follows the server as it reads
  /// its copy.
  Copy ask(const Copy& own);

  /// Writes the files of that copy into `folder`, through to the disk. Errors: System if one cannot
  /// be written; PeerLost, Timeout; those of the server.
  void receive(const std::vector<SentFile>& files, const std::filesystem::path& folder);

  std::span<std::byte> place(const net::FrameHeader& header) override;

 private:
  struct Piece {
    std::uint32_t file = 0;
    std::uint64_t offset = 0;
    parallel::server::Body bytes;
    bool arrived = false;
  };

  void on_answer(const net::FrameHeader& header, std::span<const std::byte> body) override;
  void order_pieces(const std::vector<SentFile>& files);
  parallel::server::Body next_piece(const std::vector<SentFile>& files);
  Deadline deadline() const { return Deadline::after(timeout_); }

  const std::chrono::milliseconds timeout_;
  progress::Meter& meter_;
  std::optional<Copy> offer_;
  std::uint64_t checked_ = 0, to_check_ = 0;  ///< bytes, by the server
  std::deque<Piece> ordered_;                 ///< and perhaps there
  std::uint32_t next_file_ = 0;               ///< to be ordered
  std::uint64_t next_offset_ = 0;
};

}  // namespace bimetal::data
