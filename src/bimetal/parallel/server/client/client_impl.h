#pragma once
// A worker's connections, and the thread that moves their bytes. Private to client.cpp,
// client_pull.cpp and client_links.cpp.

#include <torch/csrc/api/include/torch/types.h>

#include <array>
#include <asio/awaitable.hpp>
#include <asio/executor_work_guard.hpp>
#include <asio/io_context.hpp>
#include <asio/steady_timer.hpp>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "bimetal/parallel/server/client/client.h"
#include "bimetal/parallel/server/client/server_link.h"
#include "bimetal/parallel/server/codec.h"

namespace bimetal::parallel::server {

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
