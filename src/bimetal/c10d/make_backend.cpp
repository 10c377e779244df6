#include "bimetal/c10d/make_backend.h"

#include <fmt/format.h>

#include <charconv>
#include <cstdlib>
#include <map>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <tuple>
#include <utility>

#include "bimetal/c10d/backend_error.h"
#include "bimetal/c10d/torch_store.h"
#include "bimetal/c10d/worlds.h"
#include "bimetal/net/own_address.h"
#include "bimetal/rendezvous/bootstrap.h"

namespace bimetal::c10d {
namespace {

constexpr const char* kTokenFromEnvironment = "environment";
constexpr const char* kOwnConnections = "own";

using StorePtr = c10::intrusive_ptr<::c10d::Store>;

/// How often this rank has made a group of that name and size: all its members have made it as
/// often, so that the number tells the lives of a group apart in a store that outlives them. Per
/// rank, because the ranks of a test may be threads of one process. Not counted in the store, where
/// two processes of one rank would not be found out.
int life_of(const std::string& group, int rank, int size) {
  static std::mutex mutex;
  static std::map<std::tuple<std::string, int, int>, int> lives;
  std::lock_guard lock(mutex);
  return lives[{group, rank, size}]++;
}

/// The server behind a store, as far as it has one.
std::optional<net::Endpoint> server_of(StorePtr store) {
  if (const auto* prefixed = dynamic_cast<::c10d::PrefixStore*>(store.get())) {
    store = const_cast<::c10d::PrefixStore*>(prefixed)->getUnderlyingNonPrefixStore();
  }
  const auto* tcp = dynamic_cast<::c10d::TCPStore*>(store.get());
  if (tcp == nullptr) return std::nullopt;
  return net::Endpoint{tcp->getHost(), tcp->getPort()};
}

/// Whoever started the ranks says that all are on this machine.
bool on_one_machine() {
  const char* world = std::getenv("WORLD_SIZE");
  const char* local = std::getenv("LOCAL_WORLD_SIZE");
  return world != nullptr && local != nullptr && std::string_view(world) == local;
}

/// A store that is no server (a file on a share, an engine's own) shows no way to the other ranks:
/// whoever has started the ranks says in BIMETAL_ADDRESS by which address they reach this one.
std::string address_towards(const std::optional<net::Endpoint>& server) {
  if (on_one_machine()) return "127.0.0.1";
  if (server) return net::address_towards(*server);
  const char* told = std::getenv("BIMETAL_ADDRESS");
  return told != nullptr && *told != '\0' ? told : "127.0.0.1";
}

net::Token agree_on_token(rendezvous::Store& store, int rank, const std::string& key,
                          Deadline deadline) {
  const auto own = net::Token::from_environment();
  if (rank == 0) {
    const auto token = own.empty() ? net::Token::generate() : own;
    store.set(key, own.empty() ? token.text() : kTokenFromEnvironment, deadline);
    return token;
  }
  const std::string word = store.get(key, deadline);
  const bool given = word == kTokenFromEnvironment;
  if (given == own.empty()) {
    throw Error(ErrorCode::Unauthorized,
                fmt::format("rank {} of the group has {} token from BIMETAL_TOKEN_FILE or "
                            "BIMETAL_TOKEN, but rank 0 has {}; give all of them the same, or none",
                            rank, own.empty() ? "no" : "a", own.empty() ? "one" : "none"));
  }
  return given ? own : net::Token::from_text(word);
}

comm::Group connect(rendezvous::Store& store, int rank, int size, const std::string& prefix,
                    const BackendOptions& options, Deadline deadline) {
  rendezvous::BootstrapOptions bootstrap;
  if (size > 1) bootstrap.token = agree_on_token(store, rank, prefix + "token", deadline);
  bootstrap.prefix = prefix + "mesh";
  comm::GroupOptions group;
  group.timeout = options.timeout;
  return comm::make_group(rendezvous::connect_mesh(store, rank, size, bootstrap, deadline), group);
}

/// The first member says whether the group shares the default group's connections, and its number.
comm::Group share_or_connect(rendezvous::Store& store, int rank, int size,
                             const std::string& prefix, const BackendOptions& options,
                             Deadline deadline) {
  const auto& members = options.global_ranks_in_group;
  auto world = worlds::find(static_cast<int>(members.at(static_cast<std::size_t>(rank))), members);
  const std::string key = prefix + "number";
  if (rank == 0) {
    store.set(key, world ? std::to_string(world->new_subgroup_id()) : kOwnConnections, deadline);
  }
  const std::string word = store.get(key, deadline);
  if (word == kOwnConnections) return connect(store, rank, size, prefix, options, deadline);
  if (!world) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("the default group of rank {} is on backend bimetal, that of this rank "
                            "is not: initialise all ranks alike",
                            members.front()));
  }
  std::uint32_t number = 0;
  std::from_chars(word.data(), word.data() + word.size(), number);
  return world->subgroup({members.begin(), members.end()}, number);
}

comm::Group meet(const StorePtr& store, int rank, int size, const BackendOptions& options) {
  const auto deadline = Deadline::after(options.timeout);
  const auto server = server_of(store);
  const std::string name =
      server ? fmt::format("torch's store at {}", net::to_string(*server)) : "torch's store";
  const auto adapted = adapt_store(store, name, address_towards(server));
  const std::string prefix = fmt::format("bimetal/{}/", life_of(options.group_name, rank, size));
  return options.global_ranks_in_group.empty()
             ? connect(*adapted, rank, size, prefix, options, deadline)
             : share_or_connect(*adapted, rank, size, prefix, options, deadline);
}

}  // namespace

c10::intrusive_ptr<BimetalBackend> make_backend(StorePtr store, int rank, int size,
                                                c10::intrusive_ptr<BackendOptions> options) {
  auto group = guarded([&] { return meet(store, rank, size, *options); });
  return c10::make_intrusive<BimetalBackend>(std::move(group), std::move(store),
                                             std::move(options));
}

}  // namespace bimetal::c10d
