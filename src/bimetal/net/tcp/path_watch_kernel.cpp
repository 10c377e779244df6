// Systems whose kernel drops a connection that has retransmitted in vain for long enough.

#include "bimetal/net/tcp/sockets.h"

namespace bimetal::net {

void PathWatch::prepare(asio::ip::tcp::socket&) {}

std::chrono::milliseconds PathWatch::unanswered_for(asio::ip::tcp::socket&) {
  return {};
}

bool PathWatch::closed_unread(asio::ip::tcp::socket&) {
  return false;
}

}  // namespace bimetal::net
