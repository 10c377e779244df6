#include "bimetal/net/tcp/resolve.h"

#include <fmt/format.h>

#include <algorithm>
#include <asio/io_context.hpp>
#include <asio/steady_timer.hpp>
#include <asio/this_coro.hpp>
#include <asio/use_awaitable.hpp>
#include <chrono>
#include <future>
#include <thread>

#include "bimetal/base/error.h"

namespace bimetal::net {
namespace {

using asio::ip::tcp;
using Addresses = std::vector<tcp::endpoint>;

constexpr std::chrono::milliseconds kPollInterval{5};

/// Others are tried last: a rank that meets the store by a link-local address would publish one,
/// which means nothing to the rest without the name of their own interface.
bool reaches_beyond_one_link(const tcp::endpoint& endpoint) {
  return !endpoint.address().is_v6() || !endpoint.address().to_v6().is_link_local();
}

std::future<Addresses> resolve_elsewhere(const Endpoint& endpoint) {
  std::promise<Addresses> promise;
  auto future = promise.get_future();
  std::thread([promise = std::move(promise), endpoint]() mutable {
    try {
      asio::io_context io;
      tcp::resolver resolver(io);
      Addresses addresses;
      for (const auto& entry : resolver.resolve(endpoint.host, std::to_string(endpoint.port))) {
        addresses.push_back(entry.endpoint());
      }
      std::stable_partition(addresses.begin(), addresses.end(), reaches_beyond_one_link);
      promise.set_value(std::move(addresses));
    } catch (...) {
      promise.set_exception(std::current_exception());
    }
  }).detach();
  return future;
}

/// Empty where the host is a name.
Addresses as_numbers(const Endpoint& endpoint) {
  std::error_code error;
  const auto address = asio::ip::make_address(endpoint.host, error);
  if (error) return {};
  if (address.is_v6() && address.to_v6().is_link_local() && address.to_v6().scope_id() == 0) {
    throw Error(
        ErrorCode::InvalidArgument,
        fmt::format("{} is a link-local address, of which every interface has its own; name "
                    "one of this machine's interfaces, as in [fe80::1%eth0]:29500, or use "
                    "another address",
                    endpoint.host));
  }
  return {tcp::endpoint(address, endpoint.port)};
}

bool ready(const std::future<Addresses>& future) {
  return future.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
}

}  // namespace

asio::awaitable<Addresses> resolve(Endpoint endpoint, Deadline deadline) {
  Addresses addresses = as_numbers(endpoint);
  if (!addresses.empty()) co_return addresses;
  auto future = resolve_elsewhere(endpoint);
  asio::steady_timer timer(co_await asio::this_coro::executor);
  while (!ready(future)) {
    if (deadline.expired()) throw std::system_error(asio::error::timed_out);
    timer.expires_after(kPollInterval);
    co_await timer.async_wait(asio::use_awaitable);
  }
  co_return future.get();
}

tcp::endpoint resolve_to_listen(const Endpoint& endpoint, Deadline deadline) {
  if (const auto addresses = as_numbers(endpoint); !addresses.empty()) return addresses.front();
  auto future = resolve_elsewhere(endpoint);
  if (future.wait_until(deadline.time()) != std::future_status::ready) {
    throw Error(ErrorCode::System, fmt::format("cannot listen on {}: the system's name service "
                                               "does not answer; use a numeric address",
                                               endpoint.host));
  }
  try {
    return future.get().at(0);
  } catch (const std::exception& error) {
    throw Error(ErrorCode::System,
                fmt::format("cannot listen on {}: {}", endpoint.host, error.what()));
  }
}

}  // namespace bimetal::net
