// fabric_peer: one rank of a group whose ranks may run on different operating systems. It takes its
// place from the environment as every rank does (RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR,
// MASTER_PORT, BIMETAL_STORE, BIMETAL_TOKEN), runs the conformance suite's checks against the plain
// reference, prints one line of result, and exits with 0 if nothing was wrong.
//
// fabric_peer store HOST:PORT: serves the store to such ranks instead, prints where, and ends when
// its standard input does. fabric_peer linger: as a rank, but after its checks waits in a barrier
// for a rank that never comes: rank 0 then shows how it learns of the others' end. fabric_peer
// pace: as a rank that measures all-reduces instead. fabric_peer memory hold, and memory find
// WHERE: two processes that are no ranks, with one segment of shared memory.
//
// FABRIC_PEER_LOG=1 prints the library's log to standard error; FABRIC_PEER_JOIN_S says how long to
// wait for the others.

#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "bimetal/base/deadline.h"
#include "bimetal/base/error.h"
#include "bimetal/base/log.h"
#include "bimetal/launch/rank_environment.h"
#include "bimetal/rendezvous/bootstrap.h"
#include "bimetal/rendezvous/store.h"
#include "portability/fabric_checks.h"
#include "portability/fabric_pace.h"
#include "portability/memory_checks.h"

namespace bimetal::testing {
namespace {

constexpr int kJoinSeconds = 120;  // Wine and qemu start slowly
constexpr comm::GroupOptions kOptions{.timeout = std::chrono::seconds(120)};

void say(const std::string& line) {
  std::fputs((line + "\n").c_str(), stdout);
  std::fflush(stdout);
}

int serve_store(std::string_view where) {
  const rendezvous::StoreServer server(net::parse_endpoint(where), net::Token::from_environment());
  say("store at " + to_string(server.endpoint()));
  while (std::getchar() != EOF) {
  }
  return EXIT_SUCCESS;
}

comm::Group join(const launch::RankEnvironment& env,
                 std::optional<rendezvous::StoreServer>& server) {
  const char* const seconds = std::getenv("FABRIC_PEER_JOIN_S");
  const auto deadline =
      Deadline::after(std::chrono::seconds(seconds ? std::atoi(seconds) : kJoinSeconds));
  const auto token = net::Token::from_environment();
  if (env.store == launch::StoreOwner::RankZero && env.rank == 0) server.emplace(env.master, token);
  const auto store = rendezvous::connect_store(env.master, token, deadline);
  rendezvous::BootstrapOptions bootstrap;
  bootstrap.token = token;
  auto group = comm::make_group(
      rendezvous::connect_mesh(*store, env.rank, env.world_size, bootstrap, deadline), kOptions);
  group.barrier(deadline).wait();  // the store is not needed beyond
  return group;
}

int run_rank(std::string_view command) {
  const auto env = launch::rank_from_environment();
  if (!env) {
    throw Error(ErrorCode::InvalidArgument, "fabric_peer needs RANK and its like: see its source");
  }
  std::optional<rendezvous::StoreServer> server;
  const Stopwatch clock;
  auto group = join(*env, server);
  if (command == "pace") {
    measure_pace(group, say);
    return EXIT_SUCCESS;
  }
  int wrong = 0;
  const auto tell = [&](const std::string& what) {
    ++wrong;
    say(fmt::format("rank {}: {}", env->rank, what));
  };
  int calls = check_collectives(group, tell);
  calls += check_compression(group, tell);
  calls += check_shares(group, tell);
  if (command == "linger") {
    say(fmt::format("rank {} lingers", env->rank));
    if (env->rank != 0) group.recv({}, 0, 1).wait();
    group.barrier().wait();
  }
  calls += check_mismatch(group, tell);
  say(fmt::format("rank {} of {} on {}: {} calls, {} wrong, by {}, {:.1f} s", env->rank,
                  env->world_size, FABRIC_PEER_SYSTEM, calls, wrong, to_string(group.transport()),
                  clock.seconds()));
  return wrong == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

}  // namespace
}  // namespace bimetal::testing

int main(int argc, char** argv) {
  using namespace bimetal;
  if (const char* wish = std::getenv("FABRIC_PEER_LOG"); wish && *wish == '1') {
    set_log_sink([](LogLevel, std::string_view message) { fmt::print(stderr, "{}\n", message); },
                 LogLevel::debug);
  }
  try {
    const std::string_view command = argc > 1 ? argv[1] : "";
    if (command == "store" && argc > 2) return testing::serve_store(argv[2]);
    if (command == "memory") {
      return argc > 3 ? testing::find_memory(argv[3]) : testing::hold_memory();
    }
    return testing::run_rank(command);
  } catch (const Error& error) {
    testing::say(fmt::format("error: {}: {}", to_string(error.code()), error.what()));
    return EXIT_FAILURE;
  }
}
