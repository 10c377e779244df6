#include "bimetal/parallel/server/link/link_server.h"

#include <fmt/format.h>

#include <algorithm>
#include <asio/co_spawn.hpp>
#include <asio/executor_work_guard.hpp>
#include <asio/post.hpp>
#include <asio/steady_timer.hpp>
#include <thread>
#include <utility>
#include <vector>

#include "bimetal/base/error.h"
#include "bimetal/base/log.h"
#include "bimetal/net/tcp/handlers.h"

namespace bimetal::parallel::server {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kServiceTick{200};
constexpr milliseconds kToEndCoroutines{100};

}  // namespace

/// The link ends by itself: it may have to tell its client why first.
void LinkServer::Session::on_closed(const Error& why) {
  log(LogLevel::debug, "{} is gone: {}", connection_->remote(), why.what());
  ended_ = true;
}

/// False once it has ended.
bool LinkServer::Session::go_on(milliseconds silence) {
  if (ended_) return false;
  if (std::chrono::steady_clock::now() - connection_->heard() > silence) {
    log(LogLevel::info, "{} has fallen silent", connection_->remote());
    connection_->close();
    return false;
  }
  try {
    on_tick();
  } catch (...) {
    const auto error = to_error(std::current_exception());
    log(LogLevel::warning, "{} is told: {}", connection_->remote(), error.what());
    connection_->refuse(error);
  }
  return !ended_;
}

struct LinkServer::Impl {
  Impl(const net::Endpoint& listen, const Credentials& credentials, milliseconds silence, Open open)
      : silence(silence),
        open(std::move(open)),
        listener(io, listen, listener_options(credentials)),
        bound(listener.endpoint()),
        timer(io) {
    listener.start();
    tick();
    thread = std::thread([this] {
      net::run_handlers(io, [this](const Error& error) {
        for (const auto& client : clients) client->connection_->refuse(error);
      });
    });
  }

  ~Impl() {
    asio::post(io, [this] {
      ended = true;
      listener.stop();
      timer.cancel();
      for (const auto& client : clients) client->connection_->close();
      clients.clear();
    });
    thread.join();
  }

  net::ListenerOptions listener_options(const Credentials& credentials) {
    auto listening = net::listener_options(net::Service::Parameters, credentials);
    listening.on_connection = [this](asio::ip::tcp::socket socket,
                                     const net::AuthenticatedClient& client) {
      auto link =
          std::make_shared<Link>(std::move(socket), client.keys, Link::Side::server, bytes_sent);
      auto& session = clients.emplace_back(open(*link));
      session->connection_ = link;
      link->start(*session);
    };
    return listening;
  }

  void tick() {
    std::erase_if(clients, [this](const auto& client) { return !client->go_on(silence); });
    timer.expires_after(kServiceTick);
    timer.async_wait([this](const std::error_code& error) {
      if (!error && !ended) tick();
    });
  }

  const milliseconds silence;
  const Open open;
  asio::io_context io{1};
  std::atomic<std::uint64_t> bytes_sent{0};
  std::vector<std::unique_ptr<Session>> clients;
  net::Listener listener;
  const net::Endpoint bound;
  asio::steady_timer timer;
  bool ended = false;
  std::thread thread;
};

LinkServer::LinkServer(const net::Endpoint& listen, const Credentials& credentials,
                       milliseconds silence, Open open)
    : impl_(std::make_unique<Impl>(listen, credentials, silence, std::move(open))) {}

LinkServer::~LinkServer() = default;

net::Endpoint LinkServer::endpoint() const {
  return impl_->bound;
}

LinkClient::~LinkClient() {
  if (link_) link_->close();
  io_.restart();
  io_.run_for(kToEndCoroutines);
}

void LinkClient::connect(net::Endpoint server, Credentials credentials, Deadline deadline,
                         std::function<void(const std::string& trouble)> on_trouble) {
  asio::co_spawn(io_,
                 dial_server(std::move(server), name_, std::move(credentials), bytes_sent_,
                             deadline, std::move(on_trouble)),
                 [this](std::exception_ptr error, std::shared_ptr<Link> link) {
                   failure_ = error;
                   link_ = std::move(link);
                 });
  wait(deadline, [this] { return link_ != nullptr; });
  link_->start(*this);
}

void LinkClient::on_message(const net::FrameHeader& header, std::span<const std::byte> body) {
  if (static_cast<MessageKind>(header.operation) == MessageKind::refused) {
    const auto error = decode_refused(body);
    failure_ = std::make_exception_ptr(
        Error(error.code(), fmt::format("{} refuses to go on: {}", name_, error.what())));
  } else {
    on_answer(header, body);
  }
}

void LinkClient::on_closed(const Error& why) {
  if (!failure_) {
    failure_ = std::make_exception_ptr(
        Error(why.code(), fmt::format("{} is lost: {}", name_, why.what())));
  }
}

void LinkClient::wait(Deadline deadline, const std::function<bool()>& condition) {
  while (!condition()) {
    if (failure_) std::rethrow_exception(failure_);
    if (deadline.expired()) {
      throw Error(ErrorCode::Timeout, fmt::format("{} did not answer in time", name_));
    }
    io_.restart();
    io_.run_one_until(min(deadline, Deadline::after(kServiceTick)).time());
  }
}

}  // namespace bimetal::parallel::server
