#include "bimetal/net/tcp/listener.h"

#include <algorithm>
#include <map>
#include <utility>

#include "bimetal/base/log.h"
#include "bimetal/net/tcp/dial.h"
#include "bimetal/net/tcp/handlers.h"
#include "bimetal/net/tcp/sockets.h"
#include "bimetal/net/tcp/tcp_mesh_impl.h"

namespace bimetal::net {
namespace {

// Many times what honest clients need, each for a few milliseconds.
constexpr std::size_t kMaxUnproven = 128;
// A scanner or a rank of another job may come back thousands of times.
constexpr int kRefusalsToldAtOnce = 10;
constexpr std::chrono::seconds kTellRefusalsEvery{10};
constexpr std::chrono::seconds kResolveTimeout{5};

/// Whether the other side has ended the connection: a process that was killed, or has changed its
/// mind.
bool hung_up(const std::exception& error) {
  const auto* const system = dynamic_cast<const std::system_error*>(&error);
  return system != nullptr &&
         (system->code() == asio::error::eof || system->code() == asio::error::connection_reset);
}

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
  void note_refusal(const std::string& remote, const std::string& why);
  void stop();

  ListenerOptions options;
  HandshakeKey key;
  tcp::acceptor acceptor;
  Newcomers unproven{kMaxUnproven};
  Repetitions refusals{kRefusalsToldAtOnce, kTellRefusalsEvery};
  bool stopped = false;
};

void Listener::State::take(tcp::socket socket) {
  const auto remote = describe_remote(socket);
  spawn(acceptor.get_executor(), serve(shared_from_this(), unproven.admit(std::move(socket))),
        [remote](const Error& error) {
          log(LogLevel::error, "cannot serve {}, which has proved the token: {}", remote,
              error.what());
        });
}

asio::awaitable<void> Listener::State::serve(std::shared_ptr<State> self,
                                             std::shared_ptr<tcp::socket> socket) {
  const std::string remote = describe_remote(*socket);
  std::optional<AuthenticatedClient> client;
  {
    Watchdog watchdog(*socket, Deadline::after(options.handshake_timeout));
    try {
      client = co_await authenticate_as_server(*socket, key, options.service, options.admit);
      if (watchdog.barked()) client.reset();  // its proof and the end of its time came together
    } catch (const AnotherService& error) {
      log(LogLevel::info, "refused a connection from {}: {}", remote, error.what());
    } catch (const WrongToken& error) {
      note_refusal(remote, error.what());
      if (!stopped && options.on_wrong_token) options.on_wrong_token(remote);
    } catch (const std::exception& error) {
      if (!stopped && !watchdog.barked() && hung_up(error)) {
        log(LogLevel::info, "{} hung up before it had proved the token", remote);
      } else if (!stopped) {
        note_refusal(remote,
                     watchdog.barked() ? "it did not prove the token in time" : error.what());
      }
    }
  }
  unproven.remove(socket);
  if (client && !stopped) options.on_connection(std::move(*socket), *client);
}

void Listener::State::note_refusal(const std::string& remote, const std::string& why) {
  const auto others = refusals.next(Repetitions::Clock::now());
  if (!others) return;
  if (*others == 0) {
    log(LogLevel::warning, "refused a connection from {}: {}", remote, why);
  } else {
    log(LogLevel::warning, "refused a connection from {}, and {} more before it: {}", remote,
        *others, why);
  }
}

void Listener::State::stop() {
  if (stopped) return;
  stopped = true;
  std::error_code ignored;
  acceptor.close(ignored);
  unproven.close_all();
  if (const auto others = refusals.take_left_out(); others > 0) {
    log(LogLevel::warning, "refused {} more connections", others);
  }
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
  spawn(state_->acceptor.get_executor(), accept_each(state_->acceptor, take),
        [alive = state_](const Error& error) {
          log(LogLevel::error, "nobody new is let in any more: {}", error.what());
        });
}

void Listener::stop() {
  state_->stop();
}

namespace {

using asio::ip::tcp;

constexpr std::size_t kNetworkBytes = 8;

void hang_up_on(tcp::socket& socket) {
  std::error_code ignored;
  socket.close(ignored);
}

std::string source_of(const tcp::socket& socket) {
  std::error_code gone;
  auto address = socket.remote_endpoint(gone).address();
  if (gone) return "";
  if (address.is_v6() && address.to_v6().is_v4_mapped()) {
    address = asio::ip::make_address_v4(asio::ip::v4_mapped, address.to_v6());
  }
  if (address.is_v4() || address.is_loopback()) return address.to_string();
  const auto bytes = address.to_v6().to_bytes();
  return {bytes.begin(), bytes.begin() + kNetworkBytes};
}

}  // namespace

Newcomers::Socket Newcomers::admit(tcp::socket socket) {
  here_.push_back({source_of(socket), std::make_shared<tcp::socket>(std::move(socket))});
  const auto admitted = here_.back().socket;
  if (here_.size() > room_) drop_one_of_the_most();
  return admitted;
}

void Newcomers::drop_one_of_the_most() {
  std::map<std::string, std::size_t> count;
  for (const auto& newcomer : here_) ++count[newcomer.from];
  std::size_t most = 0;
  for (const auto& [from, number] : count) most = std::max(most, number);
  const auto oldest = std::ranges::find_if(
      here_, [&](const Newcomer& newcomer) { return count[newcomer.from] == most; });
  hang_up_on(*oldest->socket);
  here_.erase(oldest);
}

void Newcomers::remove(const Socket& socket) {
  std::erase_if(here_, [&](const Newcomer& newcomer) { return newcomer.socket == socket; });
}

void Newcomers::close_all() {
  for (const auto& newcomer : here_) hang_up_on(*newcomer.socket);
  here_.clear();
}

}  // namespace bimetal::net
