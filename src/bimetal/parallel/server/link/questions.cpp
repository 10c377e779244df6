#include "bimetal/parallel/server/link/questions.h"

#include <algorithm>
#include <asio/error.hpp>
#include <chrono>
#include <memory>

#include "bimetal/base/deadline.h"
#include "bimetal/base/error.h"
#include "bimetal/base/log.h"
#include "bimetal/parallel/server/link/link_server.h"

namespace bimetal::parallel::server {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kFirstMessage = std::size_t{64} << 10;
constexpr std::size_t kLargestMessage = std::size_t{4} << 20;
/// Seconds of the message that counts: far more than a round trip, far less than a user notices.
constexpr double kLongEnough = 0.1;
constexpr std::chrono::seconds kSilence{10};

/// A place for messages that are thrown away.
class Sink {
 public:
  std::span<std::byte> place(const net::FrameHeader& header) {
    const bool known = static_cast<MessageKind>(header.operation) == MessageKind::rate &&
                       header.payload_bytes <= kLargestMessage && header.count <= kLargestMessage;
    if (!known) throw Error(ErrorCode::CorruptData, "no message that measures a link");
    bytes_.resize(header.payload_bytes);
    return bytes_;
  }

 private:
  Body bytes_;
};

void send_message(Link& link, std::size_t bytes, std::size_t wanted) {
  net::FrameHeader header;
  header.count = wanted;
  const auto body = std::make_shared<const Body>(bytes);
  link.send_bulk(MessageKind::rate, header, *body, body);
}

class RateSession final : public LinkServer::Session {
 public:
  explicit RateSession(Link& link) : link_(link) {}
  std::span<std::byte> place(const net::FrameHeader& header) override {
    return sink_.place(header);
  }
  void on_message(const net::FrameHeader& header, std::span<const std::byte>) override {
    if (static_cast<MessageKind>(header.operation) != MessageKind::rate) {
      throw Error(ErrorCode::CorruptData, "no message that measures a link");
    }
    send_message(link_, header.count, 0);
  }

 private:
  Link& link_;
  Sink sink_;
};

class RateClient final : public LinkClient {
 public:
  RateClient(const std::string& name, Deadline deadline) : LinkClient(name), deadline_(deadline) {}

  std::span<std::byte> place(const net::FrameHeader& header) override {
    return sink_.place(header);
  }

  /// Seconds for a message of so many bytes and an answer of `wanted`.
  double exchange(std::size_t bytes, std::size_t wanted) {
    answered_ = false;
    const auto begin = Clock::now();
    send_message(link(), bytes, wanted);
    wait(deadline_, [this] { return answered_; });
    return std::chrono::duration<double>(Clock::now() - begin).count();
  }

 private:
  void on_answer(const net::FrameHeader&, std::span<const std::byte>) override { answered_ = true; }

  const Deadline deadline_;
  Sink sink_;
  bool answered_ = false;
};

/// Bytes per second; `exchange` gives the seconds for so many bytes. The better of two where that
/// is soon done: whatever else a machine does only makes it slower.
template <typename Exchange>
double rate_of(const Exchange& exchange) {
  const auto seconds_of = [&](std::size_t bytes) { return std::max(exchange(bytes), 1e-9); };
  std::size_t bytes = kFirstMessage;
  double seconds = seconds_of(bytes);
  while (seconds < kLongEnough && bytes < kLargestMessage) {
    bytes *= 2;
    seconds = seconds_of(bytes);
  }
  if (seconds < 3 * kLongEnough) seconds = std::min(seconds, seconds_of(bytes));
  return static_cast<double>(bytes) / seconds;
}

/// Training waits meanwhile. One that lives answers at once.
constexpr std::chrono::seconds kToAnswer{2};

class LeaderClient final : public LinkClient {
 public:
  using LinkClient::LinkClient;

  int ask(Deadline deadline) {
    link().send(MessageKind::ask_leader, {});
    wait(deadline, [this] { return answer_.has_value(); });
    return *answer_;
  }

  std::span<std::byte> place(const net::FrameHeader&) override {
    throw Error(ErrorCode::CorruptData, "tensors that nobody has asked for");
  }

 private:
  void on_answer(const net::FrameHeader& header, std::span<const std::byte>) override {
    if (static_cast<MessageKind>(header.operation) != MessageKind::leader) {
      throw Error(ErrorCode::CorruptData, "no answer to the question who leads");
    }
    answer_ = static_cast<int>(header.count);
  }

  std::optional<int> answer_;
};

/// Else it would be tried again: a server that starts may not listen yet.
void give_up_where_nobody_listens(const std::string& trouble) {
  const auto refused = asio::error::make_error_code(asio::error::connection_refused).message();
  if (trouble.find(refused) == std::string::npos) return;
  throw Error(ErrorCode::PeerLost, "nobody listens at its address: " + trouble);
}

}  // namespace

RateServer::RateServer(const net::Endpoint& listen, const Credentials& credentials)
    : server_(listen, credentials, kSilence,
              [](Link& link) { return std::make_unique<RateSession>(link); }) {}

LinkRate measure_rate(const net::Endpoint& server, const std::string& name,
                      const Credentials& credentials, Deadline deadline) {
  RateClient client(name, deadline);
  client.connect(server, credentials, deadline);
  LinkRate rate;
  rate.up = rate_of([&](std::size_t bytes) { return client.exchange(bytes, 0); });
  rate.down = rate_of([&](std::size_t bytes) { return client.exchange(0, bytes); });
  return rate;
}

std::optional<int> who_leads(const net::Endpoint& server, const std::string& name,
                             const Credentials& credentials) {
  const auto deadline = Deadline::after(kToAnswer);
  try {
    LeaderClient client(name);
    client.connect(server, credentials, deadline, give_up_where_nobody_listens);
    return client.ask(deadline);
  } catch (const Error& error) {
    // Also that of a stranger, who listens there now.
    log(LogLevel::info, "{} does not say who leads the job: {}", name, error.what());
    return std::nullopt;
  }
}

}  // namespace bimetal::parallel::server
