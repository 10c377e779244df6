#pragma once
// A server's side of one client's connection. Everything happens on the server's I/O thread.
// Private to server.cpp.

#include <asio/awaitable.hpp>
#include <asio/ip/tcp.hpp>
#include <asio/steady_timer.hpp>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "bimetal/net/link/session.h"
#include "bimetal/serving/batcher.h"
#include "bimetal/serving/message.h"

namespace bimetal::serving {

/// The server is asked to tick its sessions that often.
inline constexpr std::chrono::milliseconds kTick{250};

class Session;
class TextAnswering;

/// The functions that sessions need of their server.
class SessionOwner {
 public:
  virtual ~SessionOwner() = default;
  virtual const ModelFacts& facts() const = 0;
  /// Answers samples; nullptr for a language model.
  virtual Batcher* batcher() = 0;
  /// Answers texts; nullptr for another model.
  virtual TextAnswering* texts() = 0;
  virtual Figures figures() const = 0;
  /// Counts refused requests.
  virtual void on_refused() = 0;
  /// Gives `action` to the I/O thread. Thread-safe; after the server's end nothing happens.
  virtual void post(std::function<void()> action) = 0;
  /// It serves nobody any more, though it may still tell its client why. Called once.
  virtual void on_ended(const Session& session, const std::string& why) = 0;
};

class Session final : public net::FrameSession {
 public:
  Session(asio::ip::tcp::socket socket, const net::SessionKeys& keys, std::uint64_t number,
          SessionOwner& owner);

  /// Greets the client and serves it, or turns it away.
  void start(const std::optional<Error>& refusal);

  /// A heartbeat for a client that waits; an end for one that stops in the middle of a request, or
  /// does not read its answers.
  void tick();

  std::uint64_t number() const noexcept { return number_; }

 private:
  asio::awaitable<void> read_messages() override;
  bool tell(const Error& why) override;
  void on_ended(const Error& why) override;
  void finish_sending() override;
  void drop_unsent(const Error& why) override;

  std::weak_ptr<Session> weak();
  asio::awaitable<void> take_request(net::FrameHeader header);
  asio::awaitable<void> take_samples(net::FrameHeader header);
  asio::awaitable<void> take_text(net::FrameHeader header);
  void add_text(std::uint64_t sequence, TextRequest wanted);
  void more_text(std::uint64_t sequence, const TextPiece& piece,
                 const std::optional<Error>& failure);
  asio::awaitable<void> discard(std::uint64_t bytes);
  asio::awaitable<void> wait_for_room();
  asio::awaitable<bool> reserve(std::int64_t samples);
  std::optional<Error> flaw_of(const net::FrameHeader& header) const;
  std::shared_ptr<Request> new_request(const net::FrameHeader& header);
  void refuse_request(std::uint64_t request, const Error& why);
  void send(MessageKind kind, std::uint64_t sequence, std::uint64_t count, Body body);
  void answer(std::uint64_t sequence, std::int64_t samples, Body body);

  const std::uint64_t number_;
  SessionOwner& owner_;
  asio::steady_timer room_;
  int pending_ = 0;  ///< requests that wait for their answer, or whose answer waits to be sent
  int unsent_ = 0;   ///< frames
  bool receiving_ = false;
  Clock::time_point sent_;  ///< when a frame last went out, or began to wait
};

}  // namespace bimetal::serving
