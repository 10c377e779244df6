#include "bimetal/launch/port_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <asio.hpp>

#include "bimetal/base/error.h"
#include "bimetal/net/advertise.h"
#include "bimetal/net/tcp/sockets.h"

namespace bimetal::launch {
namespace {

using asio::ip::tcp;

tcp::endpoint address_of(asio::io_context& context, const net::Endpoint& place) {
  std::error_code error;
  const auto found = tcp::resolver(context).resolve(place.host, std::to_string(place.port), error);
  if (error || found.empty()) {
    throw Error(ErrorCode::System,
                fmt::format("{} cannot look up {}: {}; give an address by --master-addr",
                            asio::ip::host_name(), place.host, error.message()));
  }
  return found.begin()->endpoint();
}

const char* advice(const std::error_code& error) {
  if (error == asio::error::connection_refused) {
    return "something refuses the connection: most likely a firewall, or the address leads to "
           "another machine";
  }
  return "a firewall between the two is the usual reason";
}

}  // namespace

struct HeldPort::Impl {
  asio::io_context context;
  tcp::acceptor acceptor{context};
};

HeldPort::HeldPort(const net::Endpoint& place) : impl_(std::make_unique<Impl>()) {
  const auto address = address_of(impl_->context, place);
  auto& acceptor = impl_->acceptor;
  std::error_code error;
  net::open_to_listen(acceptor, address.protocol());
  acceptor.bind(address, error);
  if (!error) acceptor.listen(asio::socket_base::max_listen_connections, error);
  if (error == asio::error::address_in_use) {
    throw Error(
        ErrorCode::System,
        fmt::format(
            "port {} of {} is in use on {}; choose another by --master-port, or leave it out",
            place.port, place.host, asio::ip::host_name()));
  }
  if (error) {
    throw Error(ErrorCode::System,
                fmt::format("{} cannot listen at {}: {}; the ranks meet on the first host, at an "
                            "address of its own: give one by --master-addr",
                            asio::ip::host_name(), net::to_string(place), error.message()));
  }
}

HeldPort::~HeldPort() = default;

std::uint16_t HeldPort::port() const {
  return impl_->acceptor.local_endpoint().port();
}

void require_reachable(const net::Endpoint& place, std::chrono::milliseconds patience) {
  asio::io_context context;
  tcp::socket socket(context);
  std::error_code outcome = asio::error::timed_out;
  socket.async_connect(address_of(context, place),
                       [&](const std::error_code& error) { outcome = error; });
  context.run_for(patience);
  if (!outcome) return;
  const bool silent = outcome == asio::error::timed_out;
  throw Error(
      silent ? ErrorCode::Timeout : ErrorCode::System,
      fmt::format("{} cannot reach {}, where the ranks are to meet on the first host ({}): {}. "
                  "Open that port (and those that the ranks choose among themselves), or try "
                  "another by --master-port, or another address of the first host by --master-addr",
                  asio::ip::host_name(), net::to_string(place),
                  silent ? std::string("no answer") : outcome.message(), advice(outcome)));
}

bool is_this_machine(const std::string& host) {
  if (host == "localhost" || host == asio::ip::host_name()) return true;
  asio::io_context context;
  std::error_code error;
  const auto found = tcp::resolver(context).resolve(host, "", error);
  if (error) return false;
  const auto own = net::own_addresses();
  return std::any_of(found.begin(), found.end(), [&](const auto& entry) {
    const auto address = entry.endpoint().address();
    return std::any_of(own.begin(), own.end(),
                       [&](const auto& mine) { return mine.address == address; });
  });
}

}  // namespace bimetal::launch
