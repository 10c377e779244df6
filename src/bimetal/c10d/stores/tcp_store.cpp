#include "bimetal/c10d/stores/tcp_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <utility>

#include "bimetal/base/error.h"
#include "bimetal/c10d/stores/torch_store.h"

namespace bimetal::c10d {

std::unique_ptr<rendezvous::Store> connect_tcp_store(const net::Endpoint& server,
                                                     std::string prefix, std::string local_address,
                                                     Deadline deadline) {
  using std::chrono::milliseconds;
  ::c10d::TCPStoreOptions options;
  options.port = server.port;
  options.timeout =
      std::max(milliseconds(1), std::chrono::duration_cast<milliseconds>(deadline.remaining()));
  options.waitWorkers = false;
  const std::string name = fmt::format("torchrun's store at {}", net::to_string(server));
  try {
    auto store = c10::make_intrusive<::c10d::PrefixStore>(
        std::move(prefix), c10::make_intrusive<::c10d::TCPStore>(server.host, options));
    return adapt_store(std::move(store), name, std::move(local_address));
  } catch (const std::exception& error) {
    throw Error(ErrorCode::System, fmt::format("{}: {}", name, first_line(error)));
  }
}

}  // namespace bimetal::c10d
