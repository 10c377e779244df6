#include "bimetal/parallel/server/link_rate.h"

#include <fmt/format.h>

#include <algorithm>
#include <asio/co_spawn.hpp>
#include <asio/executor_work_guard.hpp>
#include <asio/io_context.hpp>
#include <asio/post.hpp>
#include <atomic>
#include <chrono>
#include <exception>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "bimetal/base/error.h"
#include "bimetal/net/tcp/listener.h"

namespace bimetal::parallel::server {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kFirstMessage = std::size_t{64} << 10;
constexpr std::size_t kLargestMessage = std::size_t{4} << 20;
/// Seconds of the message that counts: far more than a round trip, far less than a user notices.
constexpr double kLongEnough = 0.1;

void send_message(Link& link, std::size_t bytes, std::size_t wanted) {
  net::FrameHeader header;
  header.count = wanted;
  const auto body = std::make_shared<const Body>(bytes);
  link.send_bulk(MessageKind::rate, header, *body, body);
}

}  // namespace

/// Where a message goes that says nothing.
class RateSink : public LinkHandler {
 public:
  std::span<std::byte> place(const net::FrameHeader& header) override {
    const bool known = static_cast<MessageKind>(header.operation) == MessageKind::rate &&
                       header.payload_bytes <= kLargestMessage && header.count <= kLargestMessage;
    if (!known) throw Error(ErrorCode::CorruptData, "no message that measures a link");
    bytes_.resize(header.payload_bytes);
    return bytes_;
  }

 private:
  Body bytes_;
};

class RateSession final : public RateSink {
 public:
  RateSession(std::shared_ptr<Link> link, std::function<void(RateSession*)> ended)
      : link_(std::move(link)), ended_(std::move(ended)) {
    link_->start(*this);
  }
  ~RateSession() override { link_->close(); }
  void on_message(const net::FrameHeader& header, std::span<const std::byte>) override {
    if (static_cast<MessageKind>(header.operation) != MessageKind::rate) {
      throw Error(ErrorCode::CorruptData, "no message that measures a link");
    }
    send_message(*link_, header.count, 0);
  }
  void on_closed(const Error&) override { ended_(this); }

 private:
  std::shared_ptr<Link> link_;
  std::function<void(RateSession*)> ended_;
};

namespace {

/// Runs an io_context of its own while it waits.
class RateClient final : public RateSink {
 public:
  RateClient(std::string name, Deadline deadline) : name_(std::move(name)), deadline_(deadline) {}
  ~RateClient() override {
    if (link_) link_->close();
    io_.restart();
    io_.run_for(std::chrono::milliseconds(100));  // lets its coroutines end
  }

  void connect(net::Endpoint server, Credentials credentials) {
    asio::co_spawn(
        io_, dial_server(std::move(server), name_, std::move(credentials), bytes_sent_, deadline_),
        [this](std::exception_ptr error, std::shared_ptr<Link> link) {
          failure_ = error;
          link_ = std::move(link);
        });
    wait([this] { return link_ != nullptr; });
    link_->start(*this);
  }

  /// Seconds for a message of so many bytes and an answer of `wanted`.
  double exchange(std::size_t bytes, std::size_t wanted) {
    answered_ = false;
    const auto begin = Clock::now();
    send_message(*link_, bytes, wanted);
    wait([this] { return answered_; });
    return std::chrono::duration<double>(Clock::now() - begin).count();
  }

  void on_message(const net::FrameHeader&, std::span<const std::byte>) override {
    answered_ = true;
  }
  void on_closed(const Error& why) override { failure_ = std::make_exception_ptr(why); }

 private:
  template <typename Condition>
  void wait(Condition condition) {
    while (!condition()) {
      if (failure_) std::rethrow_exception(failure_);
      if (deadline_.expired()) {
        throw Error(ErrorCode::Timeout, fmt::format("{} did not answer in time", name_));
      }
      io_.restart();
      io_.run_one_until(deadline_.time());
    }
  }

  std::string name_;
  Deadline deadline_;
  asio::io_context io_{1};
  std::atomic<std::uint64_t> bytes_sent_{0};
  std::shared_ptr<Link> link_;
  std::exception_ptr failure_;
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

}  // namespace

struct RateServer::Impl {
  Impl(const net::Endpoint& listen, const Credentials& credentials)
      : listener(io, listen, listener_options(credentials)),
        bound(listener.endpoint()),
        work(io.get_executor()) {
    listener.start();
    thread = std::thread([this] { io.run(); });
  }

  ~Impl() {
    asio::post(io, [this] {
      listener.stop();
      sessions.clear();
      work.reset();
    });
    thread.join();
  }

  net::ListenerOptions listener_options(const Credentials& credentials) {
    net::ListenerOptions listening;
    listening.token = credentials.token;
    listening.service = net::Service::Parameters;
    listening.admit = admit_of(credentials);
    listening.on_connection = [this](asio::ip::tcp::socket socket,
                                     const net::AuthenticatedClient& client) {
      auto link =
          std::make_shared<Link>(std::move(socket), client.keys, Link::Side::server, bytes_sent);
      sessions.push_back(std::make_unique<RateSession>(
          std::move(link), [this](RateSession* session) { end(session); }));
    };
    return listening;
  }

  /// Later: it is the session that calls.
  void end(RateSession* session) {
    asio::post(io, [this, session] {
      std::erase_if(sessions, [session](const auto& other) { return other.get() == session; });
    });
  }

  asio::io_context io{1};
  std::atomic<std::uint64_t> bytes_sent{0};
  std::vector<std::unique_ptr<RateSession>> sessions;
  net::Listener listener;
  const net::Endpoint bound;
  asio::executor_work_guard<asio::io_context::executor_type> work;
  std::thread thread;
};

RateServer::RateServer(const net::Endpoint& listen, const Credentials& credentials)
    : impl_(std::make_unique<Impl>(listen, credentials)) {}

RateServer::~RateServer() = default;

net::Endpoint RateServer::endpoint() const {
  return impl_->bound;
}

LinkRate measure_rate(const net::Endpoint& server, const std::string& name,
                      const Credentials& credentials, Deadline deadline) {
  RateClient client(name, deadline);
  client.connect(server, credentials);
  LinkRate rate;
  rate.up = rate_of([&](std::size_t bytes) { return client.exchange(bytes, 0); });
  rate.down = rate_of([&](std::size_t bytes) { return client.exchange(0, bytes); });
  return rate;
}

}  // namespace bimetal::parallel::server
