#include "bimetal/net/tcp/newcomers.h"

#include <algorithm>
#include <map>
#include <utility>

namespace bimetal::net {
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
