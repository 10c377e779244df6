// How parameters get to a worker: asked for, awaited one by one or all together, put in place.

#include "bimetal/parallel/server/client/client.h"

#include <fmt/format.h>
#include <torch/csrc/api/include/torch/types.h>
#include <torch/csrc/api/include/torch/utils.h>

#include <algorithm>
#include <asio/post.hpp>
#include <atomic>
#include <bit>
#include <thread>
#include <utility>

#include "bimetal/base/error.h"
#include "bimetal/parallel/group_room.h"
#include "bimetal/parallel/server/client/server_link.h"

namespace bimetal::parallel::server {

Client::Client(const ClientOptions& options, const ShardPlan& plan,
               std::vector<torch::Tensor> parameters, Deadline deadline)
    : impl_(std::make_unique<Impl>(options, plan, std::move(parameters))) {
  impl_->join_all(deadline);
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
  arrivals.taken = true;
  return lease;
}

bool Client::finished() const {
  const std::scoped_lock lock(impl_->arrivals.mutex);
  return impl_->arrivals.finished;
}

void Client::set_step(std::int64_t step) noexcept {
  impl_->codec.set_step(step);
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
    std::span<const std::byte> payload = bytes;
    if (const auto encoded = impl_->codec.encode(tensor, piece, bytes); encoded.bytes) {
      header.compression = static_cast<std::uint8_t>(encoded.form.scheme);
      header.compression_detail = encoded.form.detail;
      payload = *encoded.bytes;
      keep = encoded.bytes;
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
  {
    const std::scoped_lock lock(impl_->arrivals.mutex);
    impl_->arrivals.busy = false;
  }
  done.bytes_sent = bytes_sent();
  asio::post(impl_->io, [impl = impl_.get(), lease, done] {
    net::FrameHeader header;
    header.sequence = lease;
    const auto& leader = impl->links[static_cast<std::size_t>(impl->leader)];
    leader->link->send(MessageKind::done, header, encode(done));
  });
}

void Client::say(std::vector<progress::RankLine> lines) {
  asio::post(impl_->io, [impl = impl_.get(), said = Said{std::move(lines)}] {
    const auto& leader = impl->links[static_cast<std::size_t>(impl->leader)];
    leader->link->send(MessageKind::said, {}, encode(said));
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
  // The bytes are few; if they are not out by then, the connection is gone.
  const auto deadline = Deadline::after(std::chrono::milliseconds(500));
  while (!idle->load() && !deadline.expired()) {
    asio::post(impl_->io, [impl = impl_.get(), idle] {
      const auto out = [](const auto& server) { return server->gone || server->link->idle(); };
      if (std::ranges::all_of(impl->links, out)) idle->store(true);
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
}

std::uint64_t Client::bytes_sent() const noexcept {
  return impl_->bytes_sent.load(std::memory_order_relaxed);
}

void Client::start_pull(std::uint64_t version, Values values) {
  start_pull(Lease{.version = version}, values);
}

void Client::start_pull(const Lease& lease, Values values) {
  auto& arrivals = impl_->arrivals;
  bool ahead = false;
  {
    const std::scoped_lock lock(arrivals.mutex);
    const auto& before = impl_->sets[arrivals.present];
    if (!before.missing.empty() && before.shards_here < impl_->shards && !arrivals.finished) {
      throw Error(ErrorCode::InvalidArgument,
                  "parameters are asked for while those asked for before are still on their way");
    }
    ahead = lease.id != 0 && std::exchange(arrivals.ahead, 0) == lease.id;
    if (ahead) arrivals.present = 1 - arrivals.present;
    if (!ahead) impl_->sets[arrivals.present].expect(impl_->pieces_of);
    arrivals.busy = true;
    arrivals.taken = false;
  }
  impl_->in_place.assign(impl_->parameters.size(), false);
  const auto scheme =
      values == Values::exact ? comm::Scheme::none : impl_->options.pull_compression;
  asio::post(impl_->io,
             [impl = impl_.get(), ahead, scheme, version = lease.version, steps = lease.steps_ahead,
              term = impl_->lease_term, &set = impl_->sets[arrivals.present]] {
               if (!ahead) {
                 set.wanted = version;
                 set.steps_ahead = steps;
                 set.term = term;
                 set.scheme = scheme;
                 impl->ask_for(set);
               }
               impl->look_ahead();
             });
}

void Client::wait_for(std::size_t tensor) {
  if (impl_->in_place[tensor]) return;
  auto& arrivals = impl_->arrivals;
  std::unique_lock lock(arrivals.mutex);
  const auto here = [&] {
    return impl_->sets[arrivals.present].missing[tensor] == 0 || arrivals.finished;
  };
  if (!impl_->wait_ticks(lock, here)) {
    throw Error(ErrorCode::Timeout,
                fmt::format("parameter {} has not come from the servers within parallel.timeout_s",
                            tensor));
  }
  lock.unlock();
  impl_->put_in_place(tensor);
}

std::uint64_t Client::finish_pull() {
  auto& arrivals = impl_->arrivals;
  const int shards = impl_->shards;
  std::unique_lock lock(arrivals.mutex);
  const auto& set = impl_->sets[arrivals.present];
  const auto whole = [&] { return set.shards_here == shards || arrivals.finished; };
  if (!impl_->wait_ticks(lock, whole)) {
    throw Error(ErrorCode::Timeout, fmt::format("{} of {} servers sent their parameters within "
                                                "parallel.timeout_s",
                                                set.shards_here, shards));
  }
  const auto oldest = set.oldest;
  lock.unlock();
  for (std::size_t i = 0; i < impl_->in_place.size(); ++i) impl_->put_in_place(i);
  return oldest;
}

std::uint64_t Client::newest_pulled() const {
  const std::scoped_lock lock(impl_->arrivals.mutex);
  return impl_->sets[impl_->arrivals.present].newest;
}

/// Once per pull: the same tensor, by which the model and its hooks know it, with the arrived
/// values.
void Client::Impl::put_in_place(std::size_t tensor) {
  if (in_place[tensor]) return;
  in_place[tensor] = true;
  const torch::NoGradGuard no_grad;
  auto& parameter = parameters[tensor];
  const auto& here = sets[arrivals.present].memory[tensor];
  const auto values = parameter.detach();
  if (values.data_ptr() == here.data_ptr()) return;
  if (values.is_cpu() && values.is_contiguous()) {
    parameter.set_data(here);
  } else {
    values.copy_(here);
  }
}

/// All shards' parameters. On the I/O thread, as the next two.
void Client::Impl::ask_for(IncomingParameters& set) {
  set.here.assign(plan.pieces.size(), false);
  set.unanswered = shards;
  for (int shard = 0; shard < shards; ++shard) ask(shard, set);
}

/// Asks a keeper of the shard for its parameters.
void Client::Impl::ask(int shard, IncomingParameters& set) {
  auto& first = *links[static_cast<std::size_t>(shard)];
  auto* keeper = first.gone ? copy_of(shard) : &first;
  if (keeper == nullptr) return;  // the worker's thread is told of the loss
  keeper->asked.push_back(&set);
  net::FrameHeader header;
  header.sequence = set.wanted;
  header.epoch = set.term;
  header.compression = static_cast<std::uint8_t>(set.scheme);
  header.count = std::bit_cast<std::uint64_t>(set.steps_ahead);
  // Past gradients on their way: the other direction would stand still as long as they take.
  keeper->link->send_urgent(MessageKind::pull, header);
}

/// Asks for the next lease's parameters as soon as there is one, into the memory that the present
/// lease does not use: the one before has been computed once this one has begun. The servers send
/// them when earlier answers have left.
void Client::Impl::look_ahead() {
  std::unique_lock lock(arrivals.mutex);
  if (!arrivals.busy || arrivals.taken || arrivals.leases.empty()) return;
  const Lease& next = arrivals.leases.front();
  auto& set = sets[1 - arrivals.present];
  // Parameters asked for under another lease, now void, have to arrive first.
  if (next.work != Work::train || next.id == arrivals.ahead || set.unanswered > 0) return;
  arrivals.ahead = next.id;
  set.expect(pieces_of);
  set.wanted = next.version;
  set.steps_ahead = next.steps_ahead;
  set.term = arrivals.term;
  set.scheme = options.pull_compression;
  lock.unlock();
  if (set.memory.empty()) {
    for (const auto& first : sets[0].memory) set.memory.push_back(torch::empty_like(first));
  }
  ask_for(set);
}

}  // namespace bimetal::parallel::server
