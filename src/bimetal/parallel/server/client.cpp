#include "bimetal/parallel/server/client.h"

#include <fmt/format.h>
#include <torch/torch.h>

#include <algorithm>
#include <asio/co_spawn.hpp>
#include <asio/detached.hpp>
#include <asio/executor_work_guard.hpp>
#include <asio/io_context.hpp>
#include <asio/post.hpp>
#include <asio/redirect_error.hpp>
#include <asio/steady_timer.hpp>
#include <asio/use_awaitable.hpp>
#include <atomic>
#include <functional>
#include <mutex>
#include <thread>

#include "bimetal/base/error.h"
#include "bimetal/net/tcp/dial.h"
#include "bimetal/parallel/server/push_codec.h"
#include "bimetal/parallel/server/server_link.h"
#include "bimetal/parallel/tensor_buffer.h"

namespace bimetal::parallel::server {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kWatchEvery{200};

/// Where parameters arrive: their own memory on the CPU.
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

struct Client::Impl {
  Impl(const ClientOptions& given, const ShardPlan& all_pieces, std::vector<torch::Tensor> tensors)
      : options(given),
        plan(all_pieces),
        parameters(std::move(tensors)),
        host(host_memory(parameters)),
        codec(options.compression, parameters),
        pieces_of(parameters.size()),
        shards(options.shards > 0 ? options.shards : static_cast<int>(options.servers.size())),
        work(io.get_executor()) {
    for (std::uint32_t i = 0; i < plan.pieces.size(); ++i) {
      pieces_of[plan.pieces[i].tensor].push_back(i);
    }
    for (std::size_t i = 0; i < options.servers.size(); ++i) {
      const int server = static_cast<int>(i);
      links.push_back(
          std::make_unique<ServerLink>(server, server % shards, options.servers[i], plan, host,
                                       arrivals, [this, server] { return stood_in_for(server); }));
      links.back()->gone = options.gone.contains(server);
    }
    if (links.front()->gone) leader = shards;
    asio::co_spawn(io, watch(), asio::detached);
    thread = std::thread([this] { io.run(); });
  }

  ~Impl() {
    asio::post(io, [this] {
      for (const auto& server : links) {
        if (server->link) server->link->close();
      }
      stopping = true;
      timer.cancel();
      work.reset();
    });
    thread.join();
  }

  asio::awaitable<void> connect(ServerLink& server, int number, Deadline deadline);
  void join(ServerLink& server, int number, Deadline deadline);
  bool wait_until(std::unique_lock<std::mutex>& lock, const std::function<bool()>& arrived,
                  Deadline deadline);
  asio::awaitable<void> watch();
  ServerLink* copy_of(int server) const;
  bool stood_in_for(int server);
  void ask(int shard);
  bool wait_ticks(std::unique_lock<std::mutex>& lock, const std::function<bool()>& arrived);

  ClientOptions options;
  ShardPlan plan;
  std::vector<torch::Tensor> parameters, host;
  PushCodec codec;
  std::vector<std::vector<std::uint32_t>> pieces_of;
  Arrivals arrivals;
  std::atomic<std::uint64_t> bytes_sent{0};
  asio::io_context io{1};
  asio::steady_timer timer{io};
  int shards;
  int leader = 0;            ///< of the I/O thread once all are joined
  std::uint64_t wanted = 0;  ///< version that is being pulled
  std::uint32_t wanted_term = 0;
  std::uint32_t lease_term = 0;  ///< of the caller's thread
  bool stopping = false;         ///< of the I/O thread
  asio::executor_work_guard<asio::io_context::executor_type> work;
  std::vector<std::unique_ptr<ServerLink>> links;
  std::thread thread;
};

asio::awaitable<void> Client::Impl::connect(ServerLink& server, int number, Deadline deadline) {
  net::DialRequest request{.addresses = {server.endpoint()},
                           .name = server.name(),
                           .token = options.token,
                           .hello = {},
                           .deadline = deadline};
  request.hello.service = net::Service::Parameters;
  request.hello.job = net::digest_of_job(options.job_id);
  request.hello.encrypted = options.encryption == net::Encryption::on;
  auto dialed = co_await net::dial(std::move(request));
  server.link =
      std::make_shared<Link>(std::move(dialed.socket), dialed.keys, Link::Side::client, bytes_sent);
  server.link->start(server);
  Join join = options.join;
  join.number = number;
  server.link->send(MessageKind::join, {}, encode(join));
}

/// The other server that keeps the same shard, if it is there.
ServerLink* Client::Impl::copy_of(int server) const {
  const auto other = static_cast<std::size_t>(server < shards ? server + shards : server - shards);
  if (other >= links.size() || links[other]->gone || !links[other]->link) return nullptr;
  return links[other].get();
}

/// Asks a keeper of the shard for its parameters.
void Client::Impl::ask(int shard) {
  auto& first = *links[static_cast<std::size_t>(shard)];
  auto* keeper = first.gone ? copy_of(shard) : &first;
  if (keeper == nullptr) return;  // the worker's thread is told of the loss
  keeper->asked = true;
  net::FrameHeader header;
  header.sequence = wanted;
  header.epoch = wanted_term;
  keeper->link->send(MessageKind::pull, header);
}

/// A server is gone: whether the job goes on with its copy.
bool Client::Impl::stood_in_for(int server) {
  if (copy_of(server) == nullptr) return false;
  if (std::exchange(links[static_cast<std::size_t>(server)]->asked, false)) ask(server % shards);
  if (server != leader) return true;
  // What server 0 leased out is void; its stand-in leases anew.
  leader = shards;
  const std::scoped_lock lock(arrivals.mutex);
  ++arrivals.term;
  arrivals.leases.clear();
  return true;
}

void Client::Impl::join(ServerLink& server, int number, Deadline deadline) {
  const int before = arrivals.welcomes;
  asio::co_spawn(io, connect(server, number, deadline), [this](std::exception_ptr error) {
    if (!error) return;
    const std::scoped_lock lock(arrivals.mutex);
    try {
      std::rethrow_exception(error);
    } catch (const Error& failure) {
      arrivals.failure = failure;
    } catch (const std::exception& failure) {
      arrivals.failure = Error(ErrorCode::System, failure.what());
    }
    arrivals.changed.notify_all();
  });
  std::unique_lock lock(arrivals.mutex);
  if (wait_until(
          lock, [&] { return arrivals.welcomes > before; },
          Deadline::at(deadline.time() + milliseconds(500)))) {
    return;
  }
  throw Error(ErrorCode::Timeout, fmt::format("{} did not answer in time", server.name()));
}

/// False at the deadline. Throws what has gone wrong.
bool Client::Impl::wait_until(std::unique_lock<std::mutex>& lock,
                              const std::function<bool()>& arrived, Deadline deadline) {
  while (!arrived()) {
    if (arrivals.failure && !arrivals.finished) throw *arrivals.failure;
    if (deadline.expired()) return false;
    arrivals.changed.wait_until(lock, deadline.time());
  }
  return true;
}

/// The same with options.timeout, counted in ticks.
bool Client::Impl::wait_ticks(std::unique_lock<std::mutex>& lock,
                              const std::function<bool()>& arrived) {
  const auto last = arrivals.ticks + options.timeout / kWatchEvery + 1;
  while (!arrived() && arrivals.ticks <= last) {
    const auto before = arrivals.ticks;
    wait_until(
        lock, [&] { return arrived() || arrivals.ticks != before; },
        Deadline::after(options.timeout));
  }
  return arrived();
}

/// Counts time in ticks of its own thread: a process that was stopped has waited for nobody.
asio::awaitable<void> Client::Impl::watch() {
  while (!stopping) {
    for (const auto& server : links) {
      if (!server->link || server->gone) continue;
      const auto heard = server->link->heard();
      server->silent_ticks = heard == server->heard ? server->silent_ticks + 1 : 0;
      server->heard = heard;
      if (server->silent_ticks * kWatchEvery > options.timeout) {
        server->link->close();
        server->on_closed(Error(ErrorCode::PeerLost,
                                "nothing was heard of it within "
                                "parallel.timeout_s"));
      }
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

Client::Client(const ClientOptions& options, const ShardPlan& plan,
               std::vector<torch::Tensor> parameters, Deadline deadline)
    : impl_(std::make_unique<Impl>(options, plan, std::move(parameters))) {
  // The coordinator first: it gives the number that the others know the worker by.
  auto& links = impl_->links;
  const auto& first = links[static_cast<std::size_t>(impl_->leader)];
  impl_->join(*first, options.join.number, deadline);
  for (const auto& server : links) {
    if (server != first && !server->gone) impl_->join(*server, number(), deadline);
  }
}

Client::~Client() = default;

int Client::number() const noexcept {
  return impl_->arrivals.number;
}

std::optional<Lease> Client::next(Deadline deadline) {
  auto& arrivals = impl_->arrivals;
  std::unique_lock lock(arrivals.mutex);
  impl_->wait_until(
      lock, [&] { return !arrivals.leases.empty() || arrivals.finished; }, deadline);
  if (arrivals.finished || arrivals.leases.empty()) return std::nullopt;
  impl_->lease_term = arrivals.term;
  const Lease lease = arrivals.leases.front();
  arrivals.leases.pop_front();
  return lease;
}

bool Client::finished() const {
  const std::scoped_lock lock(impl_->arrivals.mutex);
  return impl_->arrivals.finished;
}

void Client::start_pull(std::uint64_t version) {
  auto& arrivals = impl_->arrivals;
  {
    const std::scoped_lock lock(arrivals.mutex);
    arrivals.pulled = 0;
    arrivals.oldest = ~std::uint64_t{0};
  }
  asio::post(impl_->io, [impl = impl_.get(), version, term = impl_->lease_term] {
    impl->wanted = version;
    impl->wanted_term = term;
    for (int shard = 0; shard < impl->shards; ++shard) impl->ask(shard);
  });
}

std::uint64_t Client::finish_pull() {
  auto& arrivals = impl_->arrivals;
  const int shards = impl_->shards;
  std::unique_lock lock(arrivals.mutex);
  const auto whole = [&] { return arrivals.pulled == shards || arrivals.finished; };
  if (!impl_->wait_ticks(lock, whole)) {
    throw Error(ErrorCode::Timeout, fmt::format("{} of {} servers sent their parameters within "
                                                "parallel.timeout_s",
                                                arrivals.pulled, shards));
  }
  const auto oldest = arrivals.oldest;
  lock.unlock();
  const torch::NoGradGuard no_grad;
  for (std::size_t i = 0; i < impl_->host.size(); ++i) {
    const auto values = impl_->parameters[i].detach();
    if (values.data_ptr() != impl_->host[i].data_ptr()) values.copy_(impl_->host[i]);
  }
  return oldest;
}

void Client::push(std::uint64_t lease, std::size_t tensor, const torch::Tensor& gradient) {
  const auto values = gradient.detach().to(torch::kCPU).contiguous();
  for (const auto number : impl_->pieces_of[tensor]) {
    const Piece& piece = impl_->plan.pieces[number];
    net::FrameHeader header;
    header.sequence = lease;
    header.part = number;
    header.dtype = static_cast<std::uint8_t>(comm_dtype_of(values));
    const std::span<const std::byte> bytes{
        static_cast<const std::byte*>(values.data_ptr()) + piece.offset * values.element_size(),
        static_cast<std::size_t>(piece.count * values.element_size())};
    Keep keep = std::make_shared<const torch::Tensor>(values);
    auto encoded = impl_->codec.encode(tensor, piece, bytes);
    std::span<const std::byte> payload = bytes;
    if (encoded) {
      header.compression = static_cast<std::uint8_t>(impl_->options.compression);
      payload = *encoded;
      keep = encoded;
    }
    asio::post(impl_->io, [impl = impl_.get(), header, payload, keep, shard = piece.server] {
      for (std::size_t keeper = static_cast<std::size_t>(shard); keeper < impl->links.size();
           keeper += static_cast<std::size_t>(impl->shards)) {
        auto& to = *impl->links[keeper];
        if (to.gone) continue;
        ++to.pushed;
        to.link->send_bulk(MessageKind::push, header, payload, keep);
      }
    });
  }
}

void Client::end_push(std::uint64_t lease) {
  asio::post(impl_->io, [impl = impl_.get(), lease] {
    for (const auto& server : impl->links) {
      if (server->gone) continue;
      net::FrameHeader header;
      header.sequence = lease;
      header.count = std::exchange(server->pushed, 0);
      server->link->send(MessageKind::push_end, header);
    }
  });
}

void Client::done(std::uint64_t lease, Done done) {
  done.bytes_sent = bytes_sent();
  asio::post(impl_->io, [impl = impl_.get(), lease, done] {
    net::FrameHeader header;
    header.sequence = lease;
    const auto& leader = impl->links[static_cast<std::size_t>(impl->leader)];
    leader->link->send(MessageKind::done, header, encode(done));
  });
}

void Client::leave() {
  auto idle = std::make_shared<std::atomic<bool>>(false);
  asio::post(impl_->io, [impl = impl_.get()] {
    for (const auto& server : impl->links) {
      if (server->gone) continue;
      server->link->send(MessageKind::leave, {});
      server->link->finish();
    }
  });
  // The bytes are few; what is not out by then is a connection that has gone.
  const auto deadline = Deadline::after(milliseconds(500));
  while (!idle->load() && !deadline.expired()) {
    asio::post(impl_->io, [impl = impl_.get(), idle] {
      const auto out = [](const auto& server) { return server->gone || server->link->idle(); };
      if (std::ranges::all_of(impl->links, out)) idle->store(true);
    });
    std::this_thread::sleep_for(milliseconds(2));
  }
}

std::uint64_t Client::bytes_sent() const noexcept {
  return impl_->bytes_sent.load(std::memory_order_relaxed);
}

}  // namespace bimetal::parallel::server
