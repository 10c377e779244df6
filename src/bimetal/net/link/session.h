#pragma once
// One end of an authenticated connection on which messages go both ways. Servers and clients of
// parameters, of predictions and of the rendezvous store have it in common. A derived class defines
// the messages. Two coroutines, one that reads and one that writes, keep a session alive until both
// have ended. Everything happens on the thread that runs the socket's io_context.

#include <asio/awaitable.hpp>
#include <asio/cancellation_signal.hpp>
#include <asio/ip/tcp.hpp>
#include <asio/steady_timer.hpp>
#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <system_error>

#include "bimetal/base/error.h"
#include "bimetal/net/frame.h"
#include "bimetal/net/handshake.h"
#include "bimetal/net/tcp/byte_stream.h"
#include "bimetal/net/tcp/dial.h"
#include "bimetal/net/tcp/listener.h"
#include "bimetal/net/token.h"

namespace bimetal::net {

// The credentials that a client shows to a job's servers, and those that the servers require.

struct Credentials {
  Token token;
  Encryption encryption = Encryption::off;
  std::string job_id;  ///< empty for what belongs to no job
};

/// Options of a Listener that lets in clients that have proved the token, belong to this job and
/// want encryption if it does. The caller sets what to do with their connections.
ListenerOptions listener_options(Service service, const Credentials& credentials);

/// For dial(). `name` is the server's, for messages.
DialRequest dial_request(Service service, Endpoint server, std::string name,
                         const Credentials& credentials, Deadline deadline);

enum class Side { client, server };

/// Seals the bytes that one side sends, and hides them where the connection is encrypted.
struct Direction {
  SessionKey seal{};
  std::optional<noise::CipherState> cipher{};
};
Direction sent_by(Side side, const SessionKeys& keys);

class Session : public std::enable_shared_from_this<Session> {
 public:
  using Clock = std::chrono::steady_clock;

  virtual ~Session() = default;
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  /// Reads and writes from now on. Call once.
  void start();

  /// Tells the other side why, where it can be told, and ends the connection: on_ended() follows.
  void refuse(const Error& why);

  /// Ends it at once. on_ended() is not called.
  void close();

  /// Whether arrivals still count, and sends still go out.
  bool is_open() const noexcept { return !leaving_ && !closed_; }
  bool closed() const noexcept { return closed_; }

  /// When something, a sign of life for one or a part of a long message, has last arrived.
  Clock::time_point heard() const noexcept { return heard_; }
  const std::string& remote() const noexcept { return remote_; }

 protected:
  /// `to_part`: how long the other side may take, once this one leaves, to read the queue and to
  /// hang up.
  Session(asio::ip::tcp::socket socket, const SessionKeys& keys, Side side,
          std::chrono::milliseconds to_part = {});

  /// Takes in what arrives while is_open(). An exception from it ends the session:
  /// std::system_error because the connection has ended, anything else by refuse().
  virtual asio::awaitable<void> read_messages() = 0;

  /// Writes queued messages until finish_sending() and an empty queue (no error), a failed write
  /// (its error) or drop_unsent().
  virtual asio::awaitable<std::error_code> send_messages() = 0;
  virtual void finish_sending() {}
  virtual void drop_unsent(const Error& why) = 0;

  /// Queues the reason of a refusal as the last message. False: the other side understands none,
  /// and the connection ends at once.
  virtual bool tell([[maybe_unused]] const Error& why) { return false; }

  /// The session has ended; a reason may still be on its way to the other side. Called once, and
  /// not after close() or leave().
  virtual void on_ended(const Error& why) = 0;

  /// Sends queued messages, then ends the connection. The reader's buffers are not touched any
  /// more.
  void leave();
  /// Ends it at once.
  void end(const Error& why);

  /// Something is awaited from now on: earlier messages are no sign of life.
  void expect() noexcept { heard_ = Clock::now(); }

  asio::ip::tcp::socket& socket() noexcept { return socket_; }
  ByteReader& reader() noexcept { return reader_; }
  Seal& incoming() noexcept { return incoming_; }

 private:
  asio::awaitable<void> read(std::shared_ptr<Session> self);
  asio::awaitable<void> write(std::shared_ptr<Session> self);
  asio::awaitable<void> discard_rest();
  void limit_parting();

  asio::ip::tcp::socket socket_;
  const std::string remote_;
  Seal incoming_;
  ByteReader reader_;
  const std::chrono::milliseconds to_part_;
  asio::steady_timer parting_;
  asio::cancellation_signal leave_off_;  ///< for the reader's present wait
  Clock::time_point heard_ = Clock::now();
  bool reading_ = false;
  bool leaving_ = false;  ///< nothing that arrives counts any more
  bool closed_ = false;
};

// A session (session.h) whose messages are frames (net/frame.h). Parameter servers and prediction
// servers use it with their clients.

struct FrameSessionOptions {
  std::chrono::milliseconds to_part{};  ///< as Session's
  std::size_t batch_bytes = FrameWriter::kBatchBytes;
  std::atomic<std::uint64_t>* bytes_sent = nullptr;  ///< added to, where somebody counts
};

class FrameSession : public Session {
 protected:
  FrameSession(asio::ip::tcp::socket socket, const SessionKeys& keys, Side side,
               const FrameSessionOptions& options);

  /// The header of the next message; heartbeats are passed over. Throws std::system_error where the
  /// connection ends, Error for bytes that are no message's.
  asio::awaitable<FrameHeader> next_frame();

  /// Its payload, which has the length of `into`: checked, if is_open() still.
  asio::awaitable<void> receive(FrameHeader header, std::span<std::byte> into);

  /// A heartbeat, unless something goes out anyway.
  void beat();

  FrameWriter& writer() noexcept { return writer_; }
  const FrameWriter& writer() const noexcept { return writer_; }

  asio::awaitable<std::error_code> send_messages() override { return writer_.run(); }
  void finish_sending() override { writer_.finish(); }
  void drop_unsent(const Error& why) override { writer_.fail(std::make_exception_ptr(why)); }

 private:
  std::atomic<std::uint64_t> uncounted_{0};
  FrameWriter writer_;
};

}  // namespace bimetal::net
