#pragma once
// The messages from the servers to a worker, connection by connection. Private to client.cpp.

#include <fmt/format.h>

#include <asio/cancellation_signal.hpp>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bimetal/net/endpoint.h"
#include "bimetal/parallel/server/client/incoming_parameters.h"
#include "bimetal/parallel/server/link/link.h"
#include "bimetal/parallel/server/link/message.h"
#include "bimetal/parallel/server/link/silence.h"
#include "bimetal/parallel/server/shard_plan.h"

namespace bimetal::parallel::server {

/// What arrives from the servers, shared by the I/O thread and the worker's.
struct Arrivals {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<Lease> leases;  ///< that nobody has taken yet
  bool busy = false;         ///< a lease's parameters are asked for, and it is not done
  bool taken = false;        ///< a lease, whose parameters are not asked for
  std::uint64_t ahead = 0;   ///< a lease whose parameters are asked for already
  std::size_t present = 0;   ///< which set of parameters the worker computes with
  std::optional<Error> failure;
  bool finished = false;
  int welcomes = 0;
  int number = -1;
  std::int64_t ticks = 0;
  std::uint32_t term = 0;  ///< grows when another server leads
  // Of the I/O thread:
  std::size_t ring_bytes = 0;  ///< of memory shared with a server of this host
};

/// The connection with one server.
class ServerLink final : public LinkHandler {
 public:
  /// On the I/O thread: `stood_in_for`: whether the job goes on without this server; `leads`, under
  /// the lock: whether its leases count; `answered`: there is a new lease, or this server has sent
  /// all that it was asked for first.
  ServerLink(int server, int shard, net::Endpoint endpoint, const ShardPlan& plan,
             Arrivals& arrivals, std::function<bool()> stood_in_for, std::function<bool()> leads,
             std::function<void()> answered = {})
      : server_(server),
        shard_(shard),
        endpoint_(std::move(endpoint)),
        plan_(plan),
        arrivals_(arrivals),
        stood_in_for_(std::move(stood_in_for)),
        leads_(std::move(leads)),
        answered_(std::move(answered)) {}

  std::string name() const {
    return fmt::format("server {} ({})", server_, net::to_string(endpoint_));
  }
  int number() const noexcept { return server_; }
  const net::Endpoint& endpoint() const noexcept { return endpoint_; }
  std::shared_ptr<Link> link;
  std::atomic<bool> passed_over{false};  ///< it is gone, and the job goes on with its copy
  asio::cancellation_signal give_up;     ///< ends a connect() that is under way
  // Of the I/O thread.
  std::uint64_t pushed = 0;  ///< pieces of the present lease
  /// What it was asked for parameters for, and has not sent yet; what comes belongs to the first.
  std::deque<IncomingParameters*> asked;
  bool gone = false;
  Silence silence;
  std::chrono::milliseconds told{0};  ///< of the silence that lasts

  std::span<std::byte> place(const net::FrameHeader& header) override;
  void on_message(const net::FrameHeader& header, std::span<const std::byte> body) override;
  void on_closed(const Error& why) override;

 private:
  void on_piece(const net::FrameHeader& header, std::span<const std::byte> body);
  void on_lease(const Lease& lease);
  void on_pulled(std::uint64_t version);

  int server_, shard_;
  net::Endpoint endpoint_;
  const ShardPlan& plan_;
  Arrivals& arrivals_;
  std::function<bool()> stood_in_for_, leads_;
  std::function<void()> answered_;
  Body beside_;  ///< where a piece arrives that has no place in the model
};

}  // namespace bimetal::parallel::server
