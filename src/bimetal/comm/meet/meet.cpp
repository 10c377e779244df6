#include "bimetal/comm/meet/meet.h"

#include <fmt/format.h>

#include <charconv>
#include <cstdlib>
#include <map>
#include <mutex>
#include <string_view>
#include <tuple>

#include "bimetal/base/error.h"
#include "bimetal/net/endpoint.h"
#include "bimetal/net/handshake.h"
#include "bimetal/net/token.h"
#include "bimetal/rendezvous/bootstrap.h"

namespace bimetal::comm {
namespace {

constexpr const char* kTokenFromEnvironment = "environment";
constexpr const char* kNoToken = "none";
constexpr const char* kOwnConnections = "own";

/// The launcher of the ranks says that all are on this machine.
bool on_one_machine() {
  const char* world = std::getenv("WORLD_SIZE");
  const char* local = std::getenv("LOCAL_WORLD_SIZE");
  return world != nullptr && local != nullptr && std::string_view(world) == local;
}

constexpr const char* kHowToGiveOne =
    "make one with `bimetal token FILE`, copy it to every machine, and set BIMETAL_TOKEN_FILE=FILE "
    "for every rank (with torchrun: on every host, before it starts)";

/// Anybody who reads the store sees all that is in it. So the token comes from elsewhere, or there
/// is none. Without one, only this machine's users may be able to connect.
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

/// Rank 0 tells the others whether it has a token, and the name of the group's connections. That
/// name gives away ranks of another job, even if they have the same token or none.
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

Group connect(rendezvous::Store& store, const Meeting& meeting, const GroupOptions& options,
              Deadline deadline) {
  rendezvous::BootstrapOptions bootstrap;
  if (meeting.size > 1) {
    bootstrap.token = net::Token::from_environment();
    const bool has_token = !bootstrap.token.empty();
    if (meeting.rank == 0) propose(store, has_token, meeting.prefix, deadline);
    require_token(store, bootstrap.token, meeting.rank, bootstrap.encryption);
    bootstrap.job_id = agreed_job(store, has_token, meeting.rank, meeting.prefix, deadline);
  }
  bootstrap.prefix = meeting.prefix + "mesh";
  return make_group(
      rendezvous::connect_mesh(store, meeting.rank, meeting.size, bootstrap, deadline), options);
}

/// The first member says whether the group shares the first group's connections, and its number.
Group share_or_connect(rendezvous::Store& store, const Meeting& meeting,
                       const GroupOptions& options, Deadline deadline) {
  auto world = meeting.world;
  const std::string key = meeting.prefix + "number";
  if (meeting.rank == 0) {
    store.set(key, world ? std::to_string(world->new_subgroup_id()) : kOwnConnections, deadline);
  }
  const std::string word = store.get(key, deadline);
  if (word == kOwnConnections) return connect(store, meeting, options, deadline);
  if (!world) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("the default group of rank {} is on backend bimetal, that of this rank "
                            "is not: initialise all ranks alike",
                            meeting.members.front()));
  }
  std::uint32_t number = 0;
  std::from_chars(word.data(), word.data() + word.size(), number);
  return world->subgroup({meeting.members.begin(), meeting.members.end()}, number, options.timeout);
}

}  // namespace

std::string prefix_for(const std::string& group_name, int rank, int size) {
  // Per rank, because the ranks of a test may be threads of one process. Not counted in the store,
  // where two processes of one rank would not be found out.
  static std::mutex mutex;
  static std::map<std::tuple<std::string, int, int>, int> lives;
  std::lock_guard lock(mutex);
  return fmt::format("bimetal/{}/", lives[{group_name, rank, size}]++);
}

std::string address_for_meeting(const std::optional<net::Endpoint>& server) {
  if (on_one_machine()) return "127.0.0.1";
  if (server) return net::address_towards(*server);
  const char* told = std::getenv("BIMETAL_ADDRESS");
  return told != nullptr && *told != '\0' ? told : "127.0.0.1";
}

Group meet(rendezvous::Store& store, const Meeting& meeting, const GroupOptions& options,
           Deadline deadline) {
  if (meeting.size < 1 || meeting.rank < 0 || meeting.rank >= meeting.size) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("there is no rank {} in a group of {}", meeting.rank, meeting.size));
  }
  if (meeting.members.empty()) return connect(store, meeting, options, deadline);
  if (meeting.members.size() != static_cast<std::size_t>(meeting.size)) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("{} members do not make a group of {} ranks", meeting.members.size(),
                            meeting.size));
  }
  return share_or_connect(store, meeting, options, deadline);
}

}  // namespace bimetal::comm
