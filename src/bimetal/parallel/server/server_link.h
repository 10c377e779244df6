#pragma once
// What a worker hears from the servers, connection by connection. Private to client.cpp.

#include <fmt/format.h>
#include <torch/csrc/api/include/torch/types.h>

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

#include "bimetal/comm/compress/compression.h"
#include "bimetal/net/endpoint.h"
#include "bimetal/parallel/server/link.h"
#include "bimetal/parallel/server/message.h"
#include "bimetal/parallel/server/shard_plan.h"

namespace bimetal::parallel::server {

/// What arrives from the servers, shared by the I/O thread and the worker's.
struct Arrivals {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<Lease> leases;
  std::optional<Error> failure;
  bool finished = false;
  int welcomes = 0;
  int number = -1;
  std::int64_t ticks = 0;
  std::uint32_t term = 0;  ///< grows when another server leads
  // Of the present pull:
  int pulled = 0;                    ///< shards that are here
  std::uint64_t oldest = 0;          ///< version among the pieces that are here
  std::uint64_t newest = 0;          ///< version of a shard that is here
  std::vector<std::size_t> missing;  ///< pieces, per tensor
  // Of the I/O thread:
  comm::Scheme scheme = comm::Scheme::none;  ///< that pieces were asked for in
  std::vector<bool> here;                    ///< pieces
  std::size_t ring_bytes = 0;                ///< of memory shared with a server of this host
};

/// The connection with one server.
class ServerLink final : public LinkHandler {
 public:
  /// `stood_in_for`: on the I/O thread, whether the job goes on without this server.
  ServerLink(int server, int shard, net::Endpoint endpoint, const ShardPlan& plan,
             const std::vector<torch::Tensor>& host, Arrivals& arrivals,
             std::function<bool()> stood_in_for)
      : server_(server),
        shard_(shard),
        endpoint_(std::move(endpoint)),
        plan_(plan),
        host_(host),
        arrivals_(arrivals),
        stood_in_for_(std::move(stood_in_for)) {}

  std::string name() const {
    return fmt::format("server {} ({})", server_, net::to_string(endpoint_));
  }
  const net::Endpoint& endpoint() const noexcept { return endpoint_; }
  std::shared_ptr<Link> link;
  // Of the I/O thread.
  std::uint64_t pushed = 0;  ///< pieces of the present lease
  bool asked = false;        ///< for its parameters, which are not all here
  bool gone = false;
  std::chrono::steady_clock::time_point heard{};
  int silent_ticks = 0;

  std::span<std::byte> place(const net::FrameHeader& header) override;
  void on_message(const net::FrameHeader& header, std::span<const std::byte> body) override;
  void on_closed(const Error& why) override;

 private:
  void on_piece(const net::FrameHeader& header, std::span<const std::byte> body);
  std::span<std::byte> memory_of(const Piece& piece) const;
  bool whole() const;

  int server_, shard_;
  net::Endpoint endpoint_;
  const ShardPlan& plan_;
  const std::vector<torch::Tensor>& host_;
  Arrivals& arrivals_;
  std::function<bool()> stood_in_for_;
  Body beside_;  ///< where a piece arrives that has no place in the model
};

}  // namespace bimetal::parallel::server
