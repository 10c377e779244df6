#include "bimetal/parallel/server/client/client.h"

#include <fmt/format.h>
#include <torch/csrc/api/include/torch/types.h>

#include <algorithm>
#include <asio/post.hpp>
#include <atomic>
#include <thread>
#include <utility>

#include "bimetal/base/error.h"
#include "bimetal/parallel/server/client/client_impl.h"
#include "bimetal/parallel/tensor_buffer.h"

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
  // The bytes are few; what is not out by then is a connection that has gone.
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

}  // namespace bimetal::parallel::server
