#include "bimetal/parallel/server/parameter_server.h"

#include <fmt/format.h>

#include <thread>

#include "bimetal/parallel/server/link/questions.h"
#include "bimetal/parallel/server/server_node.h"
#include "bimetal/parallel/server/shard_store.h"

namespace bimetal::parallel::server {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr milliseconds kLookForTheLost{100};

}  // namespace

ParameterServer::ParameterServer(const ServerOptions& options, ShardStore& store)
    : node_(std::make_unique<ServerNode>(options, store)) {}

ParameterServer::~ParameterServer() = default;

net::Endpoint ParameterServer::endpoint() const {
  return node_->bound;
}

void ParameterServer::coordinate(const CoordinatorOptions& options) {
  node_
      ->ask([node = node_.get(), options] {
        node->coordinator = std::make_unique<Coordinator>(
            options, *node, [node](Event event) { node->events.push(std::move(event)); },
            Clock::now());
        node->listener.start();
        node->start_ticking();
      })
      .get();
}

std::optional<Event> ParameterServer::next_event(Deadline deadline) {
  look_for_the_lost();
  return node_->events.pop(deadline);
}

bool ParameterServer::complete() {
  return node_->ask([node = node_.get()] { return node->awaited().empty(); }).get();
}

void ParameterServer::look_for_the_lost() {
  if (!node_->options.lost || !next_look_.expired()) return;
  next_look_ = Deadline::after(kLookForTheLost);
  for (const int server : node_->ask([node = node_.get()] { return node->awaited(); }).get()) {
    if (!node_->options.lost(server)) continue;
    node_->ask([node = node_.get(), server] { node->never_came(server); }).get();
  }
}

std::vector<ServerState> ParameterServer::snapshot(Deadline deadline) {
  auto own = node_->ask([node = node_.get()] {
    node->states.clear();
    node->asked_for_state.clear();
    return node->options.state();
  });
  std::map<int, Body> states;
  states[node_->shard()] = own.get();
  while (static_cast<int>(states.size()) < node_->options.shards) {
    if (deadline.expired()) {
      int missing = 0;
      while (states.contains(missing)) ++missing;
      throw Error(ErrorCode::Timeout,
                  fmt::format("server {} has not sent its parameters for the checkpoint", missing),
                  missing);
    }
    const auto take = [node = node_.get()] {
      node->ask_for_states();
      return std::exchange(node->states, {});
    };
    states.merge(node_->ask(take).get());
    std::this_thread::sleep_for(milliseconds(2));
  }
  std::vector<ServerState> all;
  for (auto& [shard, state] : states) all.push_back({shard, std::move(state)});
  return all;
}

void ParameterServer::evaluate(std::int64_t chunks) {
  node_->ask([node = node_.get(), chunks] { node->coordinator->evaluate(chunks, Clock::now()); })
      .get();
}

void ParameterServer::resume() {
  node_->ask([node = node_.get()] { node->coordinator->resume(Clock::now()); }).get();
}

void ParameterServer::request_pause() {
  node_->ask([node = node_.get()] { node->coordinator->request_pause(); }).get();
}

std::vector<WorkerFigures> ParameterServer::figures() {
  return node_->ask([node = node_.get()] { return node->coordinator->figures(); }).get();
}

std::int64_t ParameterServer::samples_repeated() {
  return node_->ask([node = node_.get()] { return node->coordinator->samples_repeated(); }).get();
}

void ParameterServer::abort(const Error& why) {
  node_
      ->ask([node = node_.get(), why] {
        node->finished = true;
        std::vector<ServerSession*> servers;  // refusing one takes it off the list
        for (const auto& session : node->sessions) {
          if (session->role() == Role::server) servers.push_back(session.get());
        }
        for (auto* session : servers) session->link().refuse(why);
      })
      .get();
}

void ParameterServer::finish(Deadline deadline) {
  node_
      ->ask([node = node_.get()] {
        node->finished = true;
        node->listener.stop();
        for (const auto& session : node->sessions) {
          session->link().send(MessageKind::finish, {});
        }
      })
      .get();
  // Each side hangs up when it has read that.
  const auto left = [node = node_.get()] { return node->sessions.size(); };
  while (node_->ask(left).get() > 0 && !deadline.expired()) {
    std::this_thread::sleep_for(milliseconds(5));
  }
}

bool ParameterServer::follow(const std::optional<net::Endpoint>& coordinator,
                             const std::optional<net::Endpoint>& stand_in,
                             const std::function<void(const Event&)>& tell, Deadline to_connect) {
  node_
      ->ask([node = node_.get(), coordinator, stand_in, to_connect] {
        node->stand_in_at = stand_in;
        node->connect_by = to_connect;
        node->listener.start();
        node->start_ticking();
        if (coordinator) {
          node->join_coordinator(*coordinator, to_connect);
        } else {
          node->never_came(0);
        }
      })
      .get();
  while (!node_->ask([node = node_.get()] { return node->finished; }).get()) {
    look_for_the_lost();
    const auto event = node_->events.pop(Deadline::after(milliseconds(20)));
    if (!event) continue;
    if (std::holds_alternative<TakeOverEvent>(*event)) {
      if (coordinator) require_that_nobody_leads(*coordinator);
      return true;
    }
    tell(*event);
  }
  return false;
}

/// Server 0 is out of reach. But it may live, and have given this server up, which was stopped.
void ParameterServer::require_that_nobody_leads(const net::Endpoint& server0) {
  if (node_->ask([node = node_.get()] { return node->has_deposed; }).get()) return;
  const auto& own = node_->options;
  if (who_leads(server0, "server 0", {own.token, own.encryption, own.job_id}) != 0) return;
  throw Error(ErrorCode::Timeout,
              fmt::format("server 0 had not heard of server {} for a while, and leads the job "
                          "without it",
                          own.server),
              own.server);
}

void ParameterServer::lead(const CoordinatorOptions& options) {
  node_->ask([node = node_.get(), options] { node->lead(options); }).get();
}

std::pair<Position, std::uint64_t> ParameterServer::position() {
  return node_
      ->ask([node = node_.get()] { return std::pair(node->position(), node->store.version()); })
      .get();
}

std::uint64_t ParameterServer::version() {
  return node_->ask([node = node_.get()] { return node->store.version(); }).get();
}

std::uint64_t ParameterServer::bytes_sent() const noexcept {
  return node_->bytes_sent.load(std::memory_order_relaxed);
}

}  // namespace bimetal::parallel::server
