// Systems whose kernel drops a connection that has retransmitted in vain for long enough.

#include "bimetal/net/tcp/path_watch.h"

namespace bimetal::net {

bool PathWatch::unanswered(asio::ip::tcp::socket&) {
  return false;
}

bool PathWatch::closed_unread(asio::ip::tcp::socket&) {
  return false;
}

}  // namespace bimetal::net
