// How parameters get to a worker: asked for, awaited one by one or all together, put in place.
#include <fmt/format.h>
#include <torch/torch.h>

#include <asio/post.hpp>
#include <bit>
#include <utility>

#include "bimetal/base/error.h"
#include "bimetal/parallel/server/client.h"
#include "bimetal/parallel/server/client_impl.h"

namespace bimetal::parallel::server {

void Client::start_pull(std::uint64_t version, Values values, double ahead) {
  auto& arrivals = impl_->arrivals;
  {
    const std::scoped_lock lock(arrivals.mutex);
    arrivals.pulled = 0;
    arrivals.oldest = ~std::uint64_t{0};
    arrivals.newest = 0;
    arrivals.missing.clear();
    for (const auto& pieces : impl_->pieces_of) arrivals.missing.push_back(pieces.size());
  }
  impl_->in_place.assign(impl_->parameters.size(), false);
  const auto scheme =
      values == Values::exact ? comm::Scheme::none : impl_->options.pull_compression;
  asio::post(impl_->io, [impl = impl_.get(), version, scheme, ahead, term = impl_->lease_term] {
    impl->wanted = version;
    impl->wanted_ahead = ahead;
    impl->wanted_term = term;
    impl->arrivals.scheme = scheme;
    impl->arrivals.here.assign(impl->plan.pieces.size(), false);
    for (int shard = 0; shard < impl->shards; ++shard) impl->ask(shard);
  });
}

void Client::wait_for(std::size_t tensor) {
  if (impl_->in_place[tensor]) return;
  auto& arrivals = impl_->arrivals;
  std::unique_lock lock(arrivals.mutex);
  const auto here = [&] { return arrivals.missing[tensor] == 0 || arrivals.finished; };
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
  const auto whole = [&] { return arrivals.pulled == shards || arrivals.finished; };
  if (!impl_->wait_ticks(lock, whole)) {
    throw Error(ErrorCode::Timeout, fmt::format("{} of {} servers sent their parameters within "
                                                "parallel.timeout_s",
                                                arrivals.pulled, shards));
  }
  const auto oldest = arrivals.oldest;
  lock.unlock();
  for (std::size_t i = 0; i < impl_->in_place.size(); ++i) impl_->put_in_place(i);
  return oldest;
}

std::uint64_t Client::newest_pulled() const {
  const std::scoped_lock lock(impl_->arrivals.mutex);
  return impl_->arrivals.newest;
}

/// To the accelerator, once per pull.
void Client::Impl::put_in_place(std::size_t tensor) {
  if (in_place[tensor]) return;
  const torch::NoGradGuard no_grad;
  const auto values = parameters[tensor].detach();
  if (values.data_ptr() != host[tensor].data_ptr()) values.copy_(host[tensor]);
  in_place[tensor] = true;
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
  header.compression = static_cast<std::uint8_t>(arrivals.scheme);
  header.count = std::bit_cast<std::uint64_t>(wanted_ahead);
  keeper->link->send(MessageKind::pull, header);
}

}  // namespace bimetal::parallel::server
