// In the place of net/tcp/dial.cpp, whose coroutines clang 14 cannot compile with
// AddressSanitizer ("Cannot represent a difference across sections"). No target needs what
// net/token.cpp asks it for.

#include "bimetal/base/error.h"
#include "bimetal/net/tcp/dial.h"

namespace bimetal::net {

asio::ip::tcp::endpoint resolve_to_listen(const Endpoint& /*endpoint*/, Deadline /*deadline*/) {
  throw Error(ErrorCode::Unsupported, "nothing is resolved here");
}

}  // namespace bimetal::net
