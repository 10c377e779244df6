#include <fmt/format.h>

#include <memory>

#include "bimetal/c10d/torch_bridge.h"
#include "bimetal/launch/local/process.h"
#include "bimetal/launch/meet.h"
#include "bimetal/net/endpoint.h"

namespace bimetal::launch {
namespace {

std::unique_ptr<rendezvous::Store> connect_torch_agent(const RankEnvironment& env,
                                                       Deadline deadline) {
  const std::string address = env.on_one_machine() ? "127.0.0.1" : net::address_towards(env.master);
  return c10d::connect_tcp_store(env.master, fmt::format("bimetal/{}/{}/", env.job_id, env.attempt),
                                 address, deadline);
}

}  // namespace

comm::Group join_world(const RankEnvironment& env, const JoinOptions& options) {
  end_with_launcher();
  return meet(env, options, connect_torch_agent);
}

}  // namespace bimetal::launch
