#include "bimetal/parallel/server/parameter_server.h"

#include <fmt/format.h>

#include <asio/co_spawn.hpp>
#include <asio/detached.hpp>
#include <thread>

#include "bimetal/parallel/server/server_node.h"

namespace bimetal::parallel::server {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

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
        asio::co_spawn(node->io, node->tick_loop(), asio::detached);
      })
      .get();
}

std::optional<Event> ParameterServer::next_event(Deadline deadline) {
  return node_->events.pop(deadline);
}

std::vector<ServerState> ParameterServer::snapshot(Deadline deadline) {
  auto own = node_->ask([node = node_.get()] {
    node->states.clear();
    for (const auto& session : node->sessions) {
      if (session->admitted() && session->role() == Role::server) {
        session->link().send(MessageKind::snapshot, {});
      }
    }
    return node->options.state();
  });
  std::vector<ServerState> all{{0, own.get()}};
  while (static_cast<int>(all.size()) < node_->options.servers) {
    const int next = static_cast<int>(all.size());
    auto state = node_->ask([node = node_.get(), next]() -> std::optional<Body> {
      const auto found = node->states.find(next);
      if (found == node->states.end()) return std::nullopt;
      return std::move(found->second);
    });
    if (auto bytes = state.get()) {
      all.push_back({next, std::move(*bytes)});
    } else if (deadline.expired()) {
      throw Error(ErrorCode::Timeout,
                  fmt::format("server {} has not sent its parameters for the checkpoint", next),
                  next);
    } else {
      std::this_thread::sleep_for(milliseconds(2));
    }
  }
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

void ParameterServer::serve(const net::Endpoint& coordinator, const std::function<bool()>& stop,
                            Deadline to_connect) {
  node_
      ->ask([node = node_.get(), coordinator, to_connect] {
        node->listener.start();
        asio::co_spawn(node->io, node->tick_loop(), asio::detached);
        asio::co_spawn(node->io, node->connect_upstream(coordinator, to_connect),
                       [node](std::exception_ptr error) {
                         try {
                           if (error) std::rethrow_exception(error);
                         } catch (const Error& failure) {
                           node->fail(failure);
                         } catch (const std::exception& failure) {
                           node->fail(Error(ErrorCode::System, failure.what()));
                         }
                       });
      })
      .get();
  while (!node_->ask([node = node_.get()] { return node->finished; }).get()) {
    node_->events.pop(Deadline::after(milliseconds(20)));
    if (stop()) throw Error(ErrorCode::Aborted, "the server was asked to stop");
  }
}

std::uint64_t ParameterServer::bytes_sent() const noexcept {
  return node_->bytes_sent.load(std::memory_order_relaxed);
}

}  // namespace bimetal::parallel::server
