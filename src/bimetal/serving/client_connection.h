#pragma once
// A client's connection to who answers: made when it is first needed, and again after it was lost.
// Private to client.cpp.

#include <algorithm>
#include <asio/awaitable.hpp>
#include <asio/co_spawn.hpp>
#include <asio/io_context.hpp>
#include <chrono>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "bimetal/base/deadline.h"
#include "bimetal/serving/client.h"
#include "bimetal/serving/wire.h"

namespace bimetal::serving {

/// What a client has once it is connected.
struct Greeted : Wire {
  Greeted(asio::ip::tcp::socket connected, const net::SessionKeys& keys)
      : Wire(std::move(connected), keys, Side::client) {}
  ModelFacts facts;
};

struct ServerMessage {
  net::FrameHeader header;
  Body body;

  MessageKind kind() const { return static_cast<MessageKind>(header.operation); }
};

class ClientConnection {
 public:
  explicit ClientConnection(const ClientOptions& options)
      : options_(options), address_(options.server) {}
  ~ClientConnection() { disconnect(); }
  ClientConnection(const ClientConnection&) = delete;
  ClientConnection& operator=(const ClientConnection&) = delete;

  /// Who answers, for errors.
  std::string name() const;
  /// Of the connection that there is.
  const ModelFacts& facts() const { return wire_->facts; }

  /// Unless it stands already. Errors as Client has them.
  void connect(Deadline deadline);

  /// Runs `task` on this thread until it is done, the deadline, or too long a silence. What it
  /// throws ends the connection.
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
  static constexpr std::chrono::milliseconds kLook{250};

  asio::awaitable<bool> greet(Deadline deadline);
  void ask_directory(const Error& refusal, Deadline deadline);
  void disconnect();
  bool silent() const;
  /// What has ended a task.
  [[noreturn]] void rethrow(const std::exception_ptr& failure, bool in_time, bool silent) const;

  const ClientOptions options_;
  net::Endpoint address_;  ///< of who answers, once that is known
  asio::io_context io_{1};
  std::shared_ptr<Greeted> wire_;
  std::uint64_t sequence_ = 0;
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
  bool quiet = false;
  while (!done && !deadline.expired() && !quiet) {
    io_.run_one_until(min(deadline, Deadline::after(kLook)).time());
    quiet = silent();
  }
  const bool in_time = done;
  if (!in_time || failure) disconnect();
  if (result) return std::move(*result);
  rethrow(failure, in_time, quiet);
}

}  // namespace bimetal::serving
