#include "bimetal/net/tcp/listener.h"

#include <asio/co_spawn.hpp>
#include <asio/detached.hpp>
#include <list>

#include "bimetal/base/log.h"
#include "bimetal/net/tcp/resolve.h"
#include "bimetal/net/tcp/sockets.h"
#include "bimetal/net/tcp/watchdog.h"

namespace bimetal::net {
namespace {

// Beyond it the oldest goes: a flood of silent strangers costs bounded memory and descriptors, and
// an honest client needs a few milliseconds only.
constexpr std::size_t kMaxUnproven = 128;
constexpr std::chrono::seconds kResolveTimeout{5};

}  // namespace

struct Listener::State : std::enable_shared_from_this<State> {
  State(asio::io_context& io, const Endpoint& listen, ListenerOptions given)
      : options(std::move(given)), key(options.token), acceptor(bind(io, listen)) {}

  tcp::acceptor bind(asio::io_context& io, const Endpoint& listen) const {
    require_token_for(listen.host, options.token);
    return open_acceptor(io.get_executor(),
                         resolve_to_listen(listen, Deadline::after(kResolveTimeout)));
  }

  asio::awaitable<void> serve(std::shared_ptr<State> self, std::shared_ptr<tcp::socket> socket);
  void take(tcp::socket socket);
  void stop();

  ListenerOptions options;
  HandshakeKey key;
  tcp::acceptor acceptor;
  std::list<std::shared_ptr<tcp::socket>> unproven;
  bool stopped = false;
};

void Listener::State::take(tcp::socket socket) {
  if (unproven.size() >= kMaxUnproven) {
    std::error_code ignored;
    unproven.front()->close(ignored);
    unproven.pop_front();
  }
  unproven.push_back(std::make_shared<tcp::socket>(std::move(socket)));
  asio::co_spawn(acceptor.get_executor(), serve(shared_from_this(), unproven.back()),
                 asio::detached);
}

asio::awaitable<void> Listener::State::serve(std::shared_ptr<State> self,
                                             std::shared_ptr<tcp::socket> socket) {
  const std::string remote = describe_remote(*socket);
  std::optional<AuthenticatedClient> client;
  {
    Watchdog watchdog(*socket, Deadline::after(options.handshake_timeout));
    try {
      client = co_await authenticate_as_server(*socket, key, options.service, options.admit);
    } catch (const AnotherService& error) {
      log(LogLevel::info, "refused a connection from {}: {}", remote, error.what());
    } catch (const std::exception& error) {
      if (!stopped) {
        log(LogLevel::warning, "refused a connection from {}: {}", remote,
            watchdog.barked() ? "it did not prove the token in time" : error.what());
      }
    }
  }
  unproven.remove(socket);
  if (client && !stopped) options.on_connection(std::move(*socket), *client);
}

void Listener::State::stop() {
  if (stopped) return;
  stopped = true;
  std::error_code ignored;
  acceptor.close(ignored);
  for (const auto& socket : unproven) socket->close(ignored);
  unproven.clear();
}

Listener::Listener(asio::io_context& io, const Endpoint& listen, ListenerOptions options)
    : state_(std::make_shared<State>(io, listen, std::move(options))) {}

Listener::~Listener() {
  state_->stop();
}

Endpoint Listener::endpoint() const {
  return to_endpoint(state_->acceptor.local_endpoint());
}

void Listener::start() {
  const auto take = [state = state_.get()](tcp::socket socket) { state->take(std::move(socket)); };
  asio::co_spawn(state_->acceptor.get_executor(), accept_each(state_->acceptor, take),
                 [alive = state_](const std::exception_ptr&) {});
}

void Listener::stop() {
  state_->stop();
}

}  // namespace bimetal::net
