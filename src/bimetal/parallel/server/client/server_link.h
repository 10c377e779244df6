#pragma once
// The messages from the servers to a worker, connection by connection. Private to client.cpp.
//
// One set of parameters on its way from the servers to a worker. Private to the client.
//
// A worker's connections, and the thread that moves their bytes. Private to client.cpp,
// client_links.cpp.

#include <fmt/format.h>
#include <torch/csrc/api/include/torch/types.h>

#include <array>
#include <asio/awaitable.hpp>
#include <asio/cancellation_signal.hpp>
#include <asio/executor_work_guard.hpp>
#include <asio/io_context.hpp>
#include <asio/steady_timer.hpp>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "bimetal/comm/compress/compression.h"
#include "bimetal/net/endpoint.h"
#include "bimetal/parallel/server/client/client.h"
#include "bimetal/parallel/server/codec.h"
#include "bimetal/parallel/server/link/link.h"
#include "bimetal/parallel/server/link/message.h"
#include "bimetal/parallel/server/shard_plan.h"

namespace bimetal::parallel::server {

struct IncomingParameters {
  /// The memory that they arrive in, on the CPU; none until the set is first used.
  std::vector<torch::Tensor> memory;

  // Guarded by Arrivals::mutex:
  int shards_here = 0;
  std::uint64_t oldest = 0;          ///< version among the pieces that are here
  std::uint64_t newest = 0;          ///< version of a shard that is here
  std::vector<std::size_t> missing;  ///< pieces, per tensor

  // For the I/O thread:
  std::uint64_t wanted = 0;  ///< version
  double steps_ahead = 0;    ///< of that version
  std::uint32_t term = 0;
  comm::Scheme scheme = comm::Scheme::none;  ///< that pieces were asked for in
  std::vector<bool> here;                    ///< pieces
  int unanswered = 0;                        ///< shards that are not all here

  /// Nothing of it is here. `pieces_of`: numbers of each tensor's pieces. With the mutex held.
  void expect(const std::vector<std::vector<std::uint32_t>>& pieces_of) {
    shards_here = 0;
    oldest = ~std::uint64_t{0};
    newest = 0;
    missing.clear();
    for (const auto& pieces : pieces_of) missing.push_back(pieces.size());
  }

  /// Whether every piece of the shard is here.
  bool has(const ShardPlan& plan, int shard) const {
    for (std::size_t i = 0; i < plan.pieces.size(); ++i) {
      if (plan.pieces[i].server == shard && !here[i]) return false;
    }
    return true;
  }
};

/// Everything that arrives from the servers, shared by the I/O thread and the worker's.
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
  // For the I/O thread:
  std::size_t ring_bytes = 0;  ///< of memory shared with a server of this host
};

/// The connection with one server.
class ServerLink final : public LinkHandler {
 public:
  /// Called on the I/O thread. `stood_in_for`: whether the job goes on without this server.
  /// `leads`, under the lock: whether its leases count. `answered`: there is a new lease, or this
  /// server has sent all that it was asked for first.
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
  // For the I/O thread.
  std::uint64_t pushed = 0;  ///< pieces of the present lease
  /// Sets that it was asked to fill with parameters, and has not yet. Arrivals belong to the first.
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

struct Client::Impl {
  Impl(const ClientOptions& given, const ShardPlan& all_pieces, std::vector<torch::Tensor> tensors);
  ~Impl();

  asio::awaitable<void> connect(ServerLink& server, int number, Deadline deadline);
  void join_all(Deadline deadline);
  bool join(ServerLink& server, Deadline deadline);
  void lose(ServerLink& server);
  bool wait_until(std::unique_lock<std::mutex>& lock, const std::function<bool()>& arrived,
                  Deadline deadline);
  void fail(const Error& error);
  asio::awaitable<void> watch();
  Patience patience_with(const ServerLink& server) const;
  void tell_silence(ServerLink& server, std::chrono::milliseconds silence) const;
  ServerLink* copy_of(int server) const;
  bool stood_in_for(int server);
  bool leads(int server);
  void ask(int shard, IncomingParameters& set);
  void ask_for(IncomingParameters& set);
  void look_ahead();
  bool wait_ticks(std::unique_lock<std::mutex>& lock, const std::function<bool()>& arrived);
  void put_in_place(std::size_t tensor);

  ClientOptions options;
  ShardPlan plan;
  std::vector<torch::Tensor> parameters;
  std::array<IncomingParameters, 2>
      sets;  ///< the first in the parameters' own memory, if it can be
  PushCodec codec;
  std::vector<std::vector<std::uint32_t>> pieces_of;
  std::vector<bool> in_place;  ///< tensors of this pull; of the caller's thread
  Arrivals arrivals;
  std::atomic<std::uint64_t> bytes_sent{0};
  asio::io_context io{1};
  asio::steady_timer timer{io};
  int shards;
  int leader = 0;                ///< of the I/O thread, changed under arrivals.mutex
  std::uint32_t lease_term = 0;  ///< of the caller's thread
  bool stopping = false;         ///< of the I/O thread
  asio::executor_work_guard<asio::io_context::executor_type> work;
  std::vector<std::unique_ptr<ServerLink>> links;
  std::thread thread;
};

}  // namespace bimetal::parallel::server
