// How a worker's connections are made, watched, and replaced when a server dies.
#include <fmt/format.h>
#include <torch/csrc/api/include/torch/types.h>

#include <asio/bind_cancellation_slot.hpp>
#include <asio/co_spawn.hpp>
#include <asio/post.hpp>
#include <asio/redirect_error.hpp>
#include <asio/use_awaitable.hpp>
#include <utility>

#include "bimetal/base/error.h"
#include "bimetal/base/log.h"
#include "bimetal/net/tcp/handlers.h"
#include "bimetal/parallel/server/client/server_link.h"
#include "bimetal/parallel/server/codec.h"

namespace bimetal::parallel::server {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kWatchEvery{200};
constexpr milliseconds kLookWhetherToGiveUp{100};
constexpr milliseconds kNamedFirst{2000};
// Silences from this length on are reported. Shorter ones happen on every network.
constexpr milliseconds kLongSilence{3000};
/// A copy waits for the other servers, and asks whether another one leads.
constexpr milliseconds kToTakeOver{10000};

/// The memory in which parameters arrive: their own on the CPU.
std::vector<torch::Tensor> host_memory(const std::vector<torch::Tensor>& parameters) {
  std::vector<torch::Tensor> host;
  for (const auto& parameter : parameters) {
    const auto values = parameter.detach();
    const bool direct = values.is_cpu() && values.is_contiguous();
    host.push_back(direct ? values
                          : torch::empty(values.sizes(), values.options().device(torch::kCPU)));
  }
  return host;
}

}  // namespace

Client::Impl::Impl(const ClientOptions& given, const ShardPlan& all_pieces,
                   std::vector<torch::Tensor> tensors)
    : options(given),
      plan(all_pieces),
      parameters(std::move(tensors)),
      codec(options.compression, parameters),
      pieces_of(parameters.size()),
      in_place(parameters.size(), false),
      shards(options.shards > 0 ? options.shards : static_cast<int>(options.servers.size())),
      work(io.get_executor()) {
  for (std::uint32_t i = 0; i < plan.pieces.size(); ++i) {
    pieces_of[plan.pieces[i].tensor].push_back(i);
  }
  for (const auto& parameter : parameters) {
    require_pull_scheme(options.pull_compression, parameter.scalar_type());
  }
  for (std::size_t i = 0; i < options.servers.size(); ++i) {
    const int server = static_cast<int>(i);
    links.push_back(std::make_unique<ServerLink>(
        server, server % shards, options.servers[i], plan, arrivals,
        [this, server] { return stood_in_for(server); }, [this, server] { return leads(server); },
        [this] { look_ahead(); }));
    links.back()->passed_over = links.back()->gone = options.gone.contains(server);
  }
  sets[0].memory = host_memory(parameters);
  if (links.front()->gone) leader = shards;
  arrivals.ring_bytes = options.ring_bytes;
  net::spawn(io, watch(), [this](const Error& error) { fail(error); });
  thread =
      std::thread([this] { net::run_handlers(io, [this](const Error& error) { fail(error); }); });
}

Client::Impl::~Impl() {
  asio::post(io, [this] {
    for (const auto& server : links) {
      if (server->link) server->link->close();
    }
    stopping = true;
    for (const auto& server : links) server->give_up.emit(asio::cancellation_type::terminal);
    timer.cancel();
    work.reset();
  });
  thread.join();
}

asio::awaitable<void> Client::Impl::connect(ServerLink& server, int number, Deadline deadline) {
  // Named: GCC 12 destroys aggregates made within a co_await expression twice.
  Credentials credentials{options.token, options.encryption, options.job_id};
  net::Endpoint endpoint = server.endpoint();
  std::string name = server.name();
  server.link = co_await dial_server(std::move(endpoint), std::move(name), std::move(credentials),
                                     bytes_sent, deadline);
  if (server.gone) co_return server.link->close();
  server.link->start(server);
  Join join = options.join;
  join.number = number;
  server.link->send(MessageKind::join, {}, encode(join));
}

/// The other server that keeps the same shard, if it lives.
ServerLink* Client::Impl::copy_of(int server) const {
  const auto other = static_cast<std::size_t>(server < shards ? server + shards : server - shards);
  if (other >= links.size() || links[other]->gone) return nullptr;
  return links[other].get();
}

/// A server is gone: whether the job goes on with its copy.
bool Client::Impl::stood_in_for(int server) {
  if (copy_of(server) == nullptr) return false;
  for (auto* set : std::exchange(links[static_cast<std::size_t>(server)]->asked, {})) {
    ask(server % shards, *set);
  }
  const std::scoped_lock lock(arrivals.mutex);
  if (server == leader) leads(shards);
  return true;
}

/// Whether leases of this server count. The stand-in's first one may be here before server 0's
/// death is noticed. Under the lock.
bool Client::Impl::leads(int server) {
  if (server == leader) return true;
  if (leader != 0 || server != shards) return false;
  // The leases of server 0 are void; its stand-in leases anew.
  leader = shards;
  ++arrivals.term;
  arrivals.leases.clear();
  return true;
}

/// The coordinator first: it gives the number that the others know the worker by.
void Client::Impl::join_all(Deadline deadline) {
  auto* first = links[static_cast<std::size_t>(leader)].get();
  if (!join(*first, deadline)) {
    first = links[static_cast<std::size_t>(shards)].get();
    join(*first, deadline);
  }
  for (const auto& server : links) {
    if (server.get() != first && !server->passed_over) join(*server, deadline);
  }
}

/// A server that is to be joined has died.
void Client::Impl::lose(ServerLink& server) {
  asio::post(io, [&server] {
    if (server.gone) return;
    if (server.link) server.link->close();
    server.on_closed(Error(ErrorCode::PeerLost, "it ended before this worker had joined it"));
    server.give_up.emit(asio::cancellation_type::terminal);
  });
}

/// False where it has died meanwhile, and a copy of it lives.
bool Client::Impl::join(ServerLink& server, Deadline deadline) {
  std::unique_lock lock(arrivals.mutex);
  const int before = arrivals.welcomes;
  const int number = arrivals.number < 0 ? options.join.number : arrivals.number;
  const auto ended = [this, &server](std::exception_ptr error) {
    if (!error || server.gone) return;
    fail(to_error(error));
  };
  asio::co_spawn(io, connect(server, number, deadline),
                 asio::bind_cancellation_slot(server.give_up.slot(), ended));
  const auto settled = [&] { return arrivals.welcomes > before || server.passed_over; };
  const auto last = Deadline::at(deadline.time() + milliseconds(500));
  while (!last.expired()) {
    if (wait_until(lock, settled, min(last, Deadline::after(kLookWhetherToGiveUp)))) {
      return !server.passed_over;
    }
    if (options.give_up && options.give_up()) {
      throw Error(ErrorCode::Aborted, fmt::format("stopped before {} had answered", server.name()));
    }
    lock.unlock();
    if (options.lost && options.lost(server.number())) lose(server);
    lock.lock();
  }
  throw Error(ErrorCode::Timeout, fmt::format("{} did not answer in time", server.name()));
}

/// False at the deadline. Throws the error that has ended the job.
bool Client::Impl::wait_until(std::unique_lock<std::mutex>& lock,
                              const std::function<bool()>& arrived, Deadline deadline) {
  while (!arrived()) {
    if (arrivals.failure && !arrivals.finished) throw *arrivals.failure;
    if (deadline.expired()) return false;
    arrivals.changed.wait_until(lock, deadline.time());
  }
  return true;
}

/// The same with options.timeout, counted in ticks. A server that has fallen silent is given up
/// after that time, by its copy as well, which then takes over: its answers are waited for, too.
bool Client::Impl::wait_ticks(std::unique_lock<std::mutex>& lock,
                              const std::function<bool()>& arrived) {
  const bool copies = links.size() > static_cast<std::size_t>(shards);
  const auto patience = copies ? 2 * options.timeout + kToTakeOver : options.timeout;
  // watch() names a silent server, and may have heard it later than this began to wait.
  const auto last = arrivals.ticks + (patience + kNamedFirst) / kWatchEvery + 1;
  while (!arrived() && arrivals.ticks <= last) {
    const auto before = arrivals.ticks;
    wait_until(
        lock, [&] { return arrived() || arrivals.ticks != before; },
        Deadline::after(options.timeout));
  }
  return arrived();
}

/// On the I/O thread: tells the threads that wait for the servers.
void Client::Impl::fail(const Error& error) {
  const std::scoped_lock lock(arrivals.mutex);
  arrivals.failure = error;
  arrivals.changed.notify_all();
}

Patience Client::Impl::patience_with(const ServerLink& server) const {
  return patience_for(options.peer_timeout, options.timeout, server.link->stays_on_host());
}

/// While it lasts, and once it is over.
void Client::Impl::tell_silence(ServerLink& server, milliseconds silence) const {
  using Seconds = std::chrono::duration<double>;
  if (silence >= server.told + kLongSilence) {
    server.told += kLongSilence;
    const auto [patience, set_by] = patience_with(server);
    log(LogLevel::warning, "waiting for {}: nothing for {} s (it is given up after {:g}; {})",
        server.name(), silence.count() / 1000, Seconds(patience).count(), set_by);
  } else if (silence.count() == 0 && std::exchange(server.told, {}).count() > 0) {
    log(LogLevel::warning, "{} is back", server.name());
  }
}

/// Counts time in ticks of its own thread: a process that was stopped has waited for nobody.
asio::awaitable<void> Client::Impl::watch() {
  while (!stopping) {
    for (const auto& server : links) {
      if (!server->link || server->gone) continue;
      const auto silence = server->silence.after(kWatchEvery, server->link->heard());
      tell_silence(*server, silence);
      const auto [patience, set_by] = patience_with(*server);
      if (silence <= patience) continue;
      server->link->close();
      server->on_closed(
          Error(ErrorCode::PeerLost, fmt::format("nothing was heard of it within {}", set_by)));
    }
    {
      const std::scoped_lock lock(arrivals.mutex);
      ++arrivals.ticks;
      arrivals.changed.notify_all();
    }
    timer.expires_after(kWatchEvery);
    std::error_code ignored;
    co_await timer.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
  }
}

}  // namespace bimetal::parallel::server
