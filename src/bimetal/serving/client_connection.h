#pragma once
// A client's connection to who answers: made when it is first needed, and again after it was lost.
// Private to client.cpp.

#include <algorithm>
#include <asio/awaitable.hpp>
#include <asio/co_spawn.hpp>
#include <asio/io_context.hpp>
#include <asio/steady_timer.hpp>
#include <chrono>
#include <deque>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "bimetal/base/deadline.h"
#include "bimetal/net/link/session.h"
#include "bimetal/serving/client.h"

namespace bimetal::serving {

struct ServerMessage {
  net::FrameHeader header;
  Body body;

  MessageKind kind() const { return static_cast<MessageKind>(header.operation); }
};

/// A client's connection once it is made.
class ClientSession final : public net::FrameSession {
 public:
  ClientSession(asio::ip::tcp::socket connected, const net::SessionKeys& keys);

  /// The next message. Throws the error that has ended the connection.
  asio::awaitable<ServerMessage> next_message();
  /// A server says nothing to a client that asks nothing, unless it ends.
  bool has_said_nothing() const noexcept { return messages_.empty(); }

  using FrameSession::expect;
  using FrameSession::writer;
  ModelFacts facts;

 private:
  asio::awaitable<void> read_messages() override;
  void on_ended(const Error& why) override;
  void drop_unsent(const Error& why) override;

  std::deque<ServerMessage> messages_;  ///< that nobody has taken yet
  asio::steady_timer arrived_;
  std::optional<Error> failure_;
};

class ClientConnection {
 public:
  explicit ClientConnection(const ClientOptions& options)
      : options_(options), address_(options.server) {}
  ~ClientConnection() { disconnect(); }
  ClientConnection(const ClientConnection&) = delete;
  ClientConnection& operator=(const ClientConnection&) = delete;

  /// The name of the server, for errors.
  std::string name() const;
  /// The facts of the present connection.
  const ModelFacts& facts() const { return session().facts; }

  /// Unless it stands already. Errors as Client has them.
  void connect(Deadline deadline);

  /// Runs `task` on this thread until it is done, the deadline, or too long a silence. An exception
  /// from it ends the connection.
  template <typename Result>
  Result run(asio::awaitable<Result> task, Deadline deadline);

  /// Sends a request and returns its number. `bytes` must stay until its answer has come.
  std::uint64_t send(MessageKind kind, std::uint64_t count, comm::DType dtype,
                     std::span<const std::byte> bytes);

  /// From now on silence counts.
  void await_answers();
  /// The next message, which is no refusal: that is thrown.
  asio::awaitable<ServerMessage> next_answer();

  [[noreturn]] void answered_amiss() const;

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::milliseconds kLook{250};

  asio::awaitable<bool> greet(Deadline deadline);
  void ask_directory(const Error& refusal, Deadline deadline);
  void disconnect();
  /// Error(Aborted) where there is none.
  ClientSession& session() const;
  bool silent() const;
  bool still_there();
  void tell_of_waiting(Clock::time_point since, Deadline deadline);

  const ClientOptions options_;
  net::Endpoint address_;  ///< of who answers, once that is known
  asio::io_context io_{1};
  std::shared_ptr<ClientSession> session_;
  std::uint64_t sequence_ = 0;
  bool told_ = false;  ///< that nobody answers yet
};

template <typename Result>
Result ClientConnection::run(asio::awaitable<Result> task, Deadline deadline) {
  std::exception_ptr failure;
  std::optional<Result> result;
  bool done = false;
  asio::co_spawn(io_, std::move(task), [&](std::exception_ptr error, Result value) {
    failure = error;
    if (!error) result = std::move(value);
    done = true;
  });
  io_.restart();
  const auto began = Clock::now();
  bool quiet = false;
  while (!done && !deadline.expired() && !quiet) {
    io_.run_one_until(min(deadline, Deadline::after(kLook)).time());
    quiet = silent();
    tell_of_waiting(began, deadline);
  }
  const bool in_time = done;
  if (!in_time || failure) disconnect();
  if (result) return std::move(*result);
  if (in_time) std::rethrow_exception(failure);
  throw Error(ErrorCode::Timeout,
              name() + (quiet ? " has said nothing for 10 s" : " did not answer in time"));
}

}  // namespace bimetal::serving
