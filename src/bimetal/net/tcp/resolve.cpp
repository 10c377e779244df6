#include "bimetal/net/tcp/resolve.h"

#include <fmt/format.h>

#include <algorithm>
#include <asio/io_context.hpp>
#include <asio/steady_timer.hpp>
#include <asio/this_coro.hpp>
#include <asio/use_awaitable.hpp>
#include <chrono>
#include <exception>
#include <future>
#include <system_error>
#include <thread>
#include <utility>

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

/// A value and not an exception: what two threads have of one they would both let go of.
struct Resolved {
  std::error_code error;
  Addresses addresses;  ///< at least one, without an error
};

Resolved resolve_here(const Endpoint& endpoint) noexcept {
  Resolved resolved;
  try {
    asio::io_context io;
    tcp::resolver resolver(io);
    const auto found =
        resolver.resolve(endpoint.host, std::to_string(endpoint.port), resolved.error);
    for (const auto& entry : found) resolved.addresses.push_back(entry.endpoint());
    std::stable_partition(resolved.addresses.begin(), resolved.addresses.end(),
                          reaches_beyond_one_link);
    if (!resolved.error && resolved.addresses.empty()) resolved.error = asio::error::host_not_found;
  } catch (const std::exception&) {
    resolved.error = std::make_error_code(std::errc::not_enough_memory);
  }
  return resolved;
}

std::future<Resolved> resolve_elsewhere(const Endpoint& endpoint) {
  std::promise<Resolved> promise;
  auto future = promise.get_future();
  std::thread([promise = std::move(promise), endpoint]() mutable {
    promise.set_value(resolve_here(endpoint));
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

bool ready(const std::future<Resolved>& future) {
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
  auto resolved = future.get();
  if (resolved.error) throw std::system_error(resolved.error, "resolve");
  co_return std::move(resolved.addresses);
}

tcp::endpoint resolve_to_listen(const Endpoint& endpoint, Deadline deadline) {
  if (const auto addresses = as_numbers(endpoint); !addresses.empty()) return addresses.front();
  auto future = resolve_elsewhere(endpoint);
  if (future.wait_until(deadline.time()) != std::future_status::ready) {
    throw Error(ErrorCode::System, fmt::format("cannot listen on {}: the system's name service "
                                               "does not answer; use a numeric address",
                                               endpoint.host));
  }
  const auto resolved = future.get();
  if (!resolved.error) return resolved.addresses.front();
  throw Error(ErrorCode::System,
              fmt::format("cannot listen on {}: {}", endpoint.host, resolved.error.message()));
}

}  // namespace bimetal::net
