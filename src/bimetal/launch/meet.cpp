#include "bimetal/launch/meet.h"

#include <fmt/format.h>

#include <asio/ip/host_name.hpp>
#include <chrono>
#include <thread>
#include <utility>

#include "bimetal/base/error.h"
#include "bimetal/net/mesh.h"
#include "bimetal/net/mpi/mpi_mesh.h"
#include "bimetal/rendezvous/bootstrap.h"

namespace bimetal::launch {
namespace {

/// The address at which rank 0 serves the store. On one machine the ranks meet on loopback,
/// whatever name MASTER_ADDR gives the machine: no token is needed then, and no other machine
/// reaches the job.
net::Endpoint meeting_point(const RankEnvironment& env) {
  const bool loopback = env.store == StoreOwner::RankZero && env.on_one_machine();
  return {loopback ? "127.0.0.1" : env.master.host, env.master.port};
}

std::unique_ptr<rendezvous::Store> find_store(const RankEnvironment& env,
                                              const JoinOptions& options,
                                              const TorchAgent& torch_agent, Deadline deadline) {
  if (env.store != StoreOwner::TorchAgent) {
    return rendezvous::connect_store(meeting_point(env), options.token, deadline);
  }
  if (torch_agent) return torch_agent(env, deadline);
  throw Error(ErrorCode::Unsupported,
              "torchrun serves the store of this job, which this program, built without torch, "
              "cannot speak to; unset TORCHELASTIC_USE_AGENT_STORE, or use bimetal bench of the "
              "whole program (docs/install.md)",
              env.rank);
}

/// The prefix of keys in the store.
std::string prefix_of(const RankEnvironment& env) {
  return fmt::format("mesh/{}", env.attempt);
}

std::unique_ptr<net::Mesh> meet_by_store(const RankEnvironment& env, rendezvous::Store& store,
                                         const JoinOptions& options, Deadline deadline) {
  rendezvous::BootstrapOptions bootstrap;
  bootstrap.job_id = env.job_id;
  bootstrap.token = options.token;
  if (options.peer_timeout) bootstrap.peer_timeout = options.peer_timeout;
  bootstrap.prefix = prefix_of(env);
  return rendezvous::connect_mesh(store, env.rank, env.world_size, bootstrap, deadline);
}

/// The meeting by way of a store, if there is one.
comm::Group join(const RankEnvironment& env, const JoinOptions& options,
                 const TorchAgent& torch_agent, Deadline deadline) {
  std::unique_ptr<rendezvous::Store> store;
  if (env.store != StoreOwner::Nobody) store = find_store(env, options, torch_agent, deadline);

  comm::GroupOptions group_options = options.group;
  group_options.epoch = static_cast<std::uint32_t>(env.attempt);
  auto group = comm::make_group(
      store ? meet_by_store(env, *store, options, deadline) : net::make_mpi_mesh(deadline),
      group_options);
  group.barrier(deadline).wait();
  return group;
}

/// For the others to read the error, before the store goes with this rank.
constexpr std::chrono::seconds kTimeToRead{1};

}  // namespace

comm::Group meet(const RankEnvironment& env, const JoinOptions& options,
                 const TorchAgent& torch_agent) {
  // A world of one has nobody to meet: nothing listens, and the port may be in use.
  if (env.world_size == 1 && env.store == StoreOwner::RankZero) {
    return single_process_world(options.group);
  }
  const auto deadline = Deadline::after(options.join_timeout);
  if (env.store != StoreOwner::RankZero || env.rank != 0) {
    return join(env, options, torch_agent, deadline);
  }
  // Outlives the others' look-ups: see the barrier.
  const rendezvous::StoreServer server(meeting_point(env), options.token,
                                       net::encryption_from_environment(),
                                       rendezvous::fault_key(prefix_of(env)));
  try {
    return join(env, options, torch_agent, deadline);
  } catch (const Error& error) {
    const bool concerns_all =
        error.code() == ErrorCode::InvalidArgument || error.code() == ErrorCode::ProtocolMismatch ||
        error.code() == ErrorCode::Unauthorized || error.code() == ErrorCode::Timeout;
    if (concerns_all) std::this_thread::sleep_for(kTimeToRead);
    throw;
  }
}

comm::Group single_process_world(const comm::GroupOptions& options) {
  return comm::make_group(net::make_solo_mesh(asio::ip::host_name()), options);
}

}  // namespace bimetal::launch
