#pragma once
// One authenticated connection to one peer: frames out, frames in, heartbeats, and how it ends.
//
// It ends in exactly one of three ways: an exchange of Goodbye frames (either side starts), a loss
// (reported once to the receiver), or abandon(). Everything happens on the mesh's thread.

#include <asio/awaitable.hpp>
#include <asio/ip/tcp.hpp>
#include <asio/steady_timer.hpp>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <system_error>

#include "bimetal/net/handshake.h"
#include "bimetal/net/mesh.h"
#include "bimetal/net/tcp/byte_stream.h"
#include "bimetal/net/tcp/sockets.h"

namespace bimetal::net {

// How many bytes Asio asks of the system at once. Its own completion conditions stop at 64 KiB per
// call, which costs a third of the throughput on a fast path.

/// A completion condition: the whole transfer, in calls as large as the buffers.
inline std::size_t as_much_as_fits(const std::error_code& error, std::size_t) {
  return error ? 0 : std::numeric_limits<std::size_t>::max();
}

struct ConnectionOptions {
  int peer = -1;          ///< the peer's rank
  std::string peer_name;  ///< for messages: "rank 1 (mac.local, 10.0.0.2:4711)"
  SessionKey send_key{};
  SessionKey receive_key{};
  std::optional<noise::CipherState> send_cipher{};  ///< both, where the connection is encrypted
  std::optional<noise::CipherState> receive_cipher{};
  std::chrono::milliseconds heartbeat{200};
  std::optional<std::chrono::milliseconds> peer_timeout{};  ///< see peer_timeout_for
};

/// Told on the mesh's thread what becomes of a connection that has been started.
class ConnectionOwner {
 public:
  virtual ~ConnectionOwner() = default;

  /// The first frame of its peer is here (expect_confirmation()).
  virtual void on_confirmed(int peer) = 0;

  /// It has ended other than in good order, once at most. Without a confirmation nobody is lost:
  /// its maker has given it up.
  virtual void on_connection_lost(int peer, const Error& error, bool confirmed) = 0;

  /// A Loss frame has come. May throw Error(CorruptData).
  virtual void on_loss_told(int peer, std::span<const std::byte> payload) = 0;
};

class Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(asio::ip::tcp::socket socket, ConnectionOptions options,
             std::atomic<std::uint64_t>& bytes_sent);

  /// Its peer, and this side's address: "rank 1 (mac.local, 10.0.0.2:4711) from 10.0.0.3:4712".
  std::string describe() const;

  /// Whether both ends are on this machine.
  bool stays_on_host() const noexcept { return stays_on_host_; }

  /// Starts the sending side. Call once, before anything else that sends.
  void open();

  /// The peer has made this connection and may have given it up since. Nothing is to be sent, and
  /// open() waits, until its first frame shows that it uses it. Call before start().
  void expect_confirmation() { confirmed_ = false; }
  /// That is taken for granted from now on.
  void confirm() { confirmed_ = true; }
  /// Shows the peer, which waits for that, that this side uses the connection.
  void greet();

  /// Starts the receiving side; a loss that happened before is reported now.
  void start(FrameReceiver& receiver, ConnectionOwner& owner);

  /// Whether the peer has said goodbye.
  bool peer_has_left() const noexcept { return peer_left_; }

  /// Whether neither side has begun to leave, and it is not lost.
  bool stands() const noexcept { return state_ == State::open && !peer_left_; }

  void send(const FrameHeader& header, std::span<const std::byte> payload, SendDone done);
  void resume();

  /// To be called several times per peer_timeout: sends a heartbeat when one is due, and notices a
  /// path that has gone silent: it tells of that while it lasts.
  void tick();

  /// Says goodbye after the queue, then calls `finished`: when the peer has answered, or at once
  /// where the connection has ended already. From now on arriving frames are discarded and losses
  /// are not reported.
  void leave(std::function<void()> finished);

  /// Ends the connection at once as if it had been lost, and reports that.
  void drop();

  /// The same for a failure of this side: nothing more can be received or sent.
  void give_up(const Error& why);

  /// Ends the connection at once without a report; pending sends end in `reason`. `finished` of
  /// leave() is called.
  void abandon(const Error& reason);

 private:
  enum class State {
    open,
    departed,  ///< the peer has said goodbye; ours follows after the queue
    leaving,   ///< leave() was called; waiting for the peer's goodbye
    ended,
  };

  void run(asio::awaitable<void> loop);
  asio::awaitable<void> write_loop(std::shared_ptr<Connection> self);
  asio::awaitable<void> read_loop(std::shared_ptr<Connection> self);
  asio::awaitable<std::error_code> read_frames();
  asio::awaitable<std::error_code> deliver(const FrameHeader& header);
  asio::awaitable<std::error_code> hear_of_loss(const FrameHeader& header);
  void note_first_frame();
  asio::awaitable<std::error_code> discard(std::uint64_t bytes);
  asio::awaitable<FrameReceiver::Placement> place(const FrameHeader& header);

  void say_goodbye();
  void on_goodbye();
  void on_stream_end(const std::error_code& error);
  void lose(const Error& error);
  void end(const Error& reason);
  void tell_silence(std::chrono::milliseconds silence);
  void note_arrivals();
  std::string last_silence() const;
  bool discarding() const noexcept { return state_ == State::leaving || state_ == State::ended; }

  asio::ip::tcp::socket socket_;
  ConnectionOptions options_;
  Seal incoming_;
  ByteReader reader_;
  FrameWriter writer_;
  const bool stays_on_host_;
  const std::chrono::milliseconds peer_timeout_;
  PathWatch path_;
  std::chrono::milliseconds silence_{};                   ///< the last one that was long
  std::chrono::steady_clock::time_point silent_until_{};  ///< when that was seen last
  std::chrono::milliseconds tell_at_;                     ///< of the next silence to be told of
  FrameReceiver* receiver_ = nullptr;
  ConnectionOwner* owner_ = nullptr;
  State state_ = State::open;
  bool confirmed_ = true;
  bool reading_ = false;
  bool written_out_ = false;  ///< our goodbye is on its way
  bool peer_left_ = false;    ///< the peer has said goodbye
  bool paused_ = false;       ///< a frame waits for its receiver, and nothing is read
  bool resumed_ = false;
  asio::steady_timer resume_signal_;
  std::chrono::steady_clock::time_point last_heartbeat_;
  bool arrived_ = false;                      ///< something, since the last tick
  std::chrono::milliseconds nothing_for_{0};  ///< by this process's ticks
  std::chrono::steady_clock::time_point last_tick_;
  std::optional<Error> unreported_;  ///< a loss from before start()
  bool quiet_ = false;               ///< no loss (or no further one) is to be reported
  std::function<void()> finished_;
};

}  // namespace bimetal::net
