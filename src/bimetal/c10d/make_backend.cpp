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
#include "bimetal/c10d/stores/torch_store.h"
#include "bimetal/c10d/worlds.h"
#include "bimetal/net/handshake.h"
#include "bimetal/net/own_address.h"
#include "bimetal/rendezvous/bootstrap.h"

namespace bimetal::c10d {
namespace {

constexpr const char* kTokenFromEnvironment = "environment";
constexpr const char* kNoToken = "none";
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

constexpr const char* kHowToGiveOne =
    "make one with `bimetal token FILE`, copy it to every machine, and set BIMETAL_TOKEN_FILE=FILE "
    "for every rank (with torchrun: on every host, before it starts)";

/// Whoever reads torch's store knows what stands there. So the token comes from elsewhere, or there
/// is none, which is enough where nobody but this machine's users can connect.
void require_token(const rendezvous::Store& store, const net::Token& token, int rank,
                   net::Encryption encryption) {
  if (!token.empty()) return;
  const std::string where = store.local_address();
  if (!net::is_loopback(where)) {
    throw Error(ErrorCode::Unauthorized,
                fmt::format("rank {} of the group reaches the others beyond loopback, from {}, and "
                            "has no token: anyone on the network could join. For ranks of several "
                            "machines {}; for ranks of one, MASTER_ADDR=127.0.0.1 keeps them on it",
                            rank, where, kHowToGiveOne));
  }
  if (encryption == net::Encryption::on) {
    throw Error(ErrorCode::Unauthorized,
                fmt::format("rank {} of the group is to encrypt (BIMETAL_ENCRYPTION) and has no "
                            "token to tell the other ranks from strangers by: {}",
                            rank, kHowToGiveOne));
  }
}

/// What rank 0 tells the others: whether it has a token, and the name of the group's connections,
/// by which ranks of another job are found out although they may have the same token, or none
/// either.
void propose(rendezvous::Store& store, bool has_token, const std::string& prefix,
             Deadline deadline) {
  const net::Nonce name = net::fresh_nonce();
  store.set(prefix + "token", has_token ? kTokenFromEnvironment : kNoToken, deadline);
  store.set(prefix + "job", {reinterpret_cast<const char*>(name.data()), name.size()}, deadline);
}

/// That name. Error(Unauthorized) where rank 0 has a token and this rank none, or the reverse.
std::string agreed_job(rendezvous::Store& store, bool has_token, int rank,
                       const std::string& prefix, Deadline deadline) {
  const bool given = store.get(prefix + "token", deadline) == kTokenFromEnvironment;
  if (given == has_token) return store.get(prefix + "job", deadline);
  throw Error(ErrorCode::Unauthorized,
              fmt::format("rank {} of the group has {} token from BIMETAL_TOKEN_FILE or "
                          "BIMETAL_TOKEN, but rank 0 has {}; give all of them the same, or none",
                          rank, has_token ? "a" : "no", given ? "one" : "none"));
}

comm::Group connect(rendezvous::Store& store, int rank, int size, const std::string& prefix,
                    const BackendOptions& options, Deadline deadline) {
  rendezvous::BootstrapOptions bootstrap;
  if (size > 1) {
    bootstrap.token = net::Token::from_environment();
    const bool has_token = !bootstrap.token.empty();
    if (rank == 0) propose(store, has_token, prefix, deadline);
    require_token(store, bootstrap.token, rank, bootstrap.encryption);
    bootstrap.job_id = agreed_job(store, has_token, rank, prefix, deadline);
  }
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

comm::Group meet(const StorePtr& store, int rank, int size, const std::string& prefix,
                 const BackendOptions& options) {
  const auto deadline = Deadline::after(options.timeout);
  const auto server = server_of(store);
  const std::string name =
      server ? fmt::format("torch's store at {}", net::to_string(*server)) : "torch's store";
  const auto adapted = adapt_store(store, name, address_towards(server));
  return options.global_ranks_in_group.empty()
             ? connect(*adapted, rank, size, prefix, options, deadline)
             : share_or_connect(*adapted, rank, size, prefix, options, deadline);
}

}  // namespace

c10::intrusive_ptr<BimetalBackend> make_backend(StorePtr store, int rank, int size,
                                                c10::intrusive_ptr<BackendOptions> options) {
  const std::string prefix = fmt::format("bimetal/{}/", life_of(options->group_name, rank, size));
  auto group = guarded([&] { return meet(store, rank, size, prefix, *options); });
  auto own_store = c10::make_intrusive<::c10d::PrefixStore>(prefix, std::move(store));
  return c10::make_intrusive<BimetalBackend>(std::move(group), std::move(own_store),
                                             std::move(options));
}

}  // namespace bimetal::c10d
