#pragma once
// A program of one's own as the ranks of a job: real processes with torchrun's variables.

#include <asio/io_context.hpp>
#include <asio/ip/tcp.hpp>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "support/forked_child.h"

namespace bimetal::test {

inline std::string free_port() {
  asio::io_context context;
  const asio::ip::tcp::endpoint any(asio::ip::address_v4::loopback(), 0);
  return std::to_string(asio::ip::tcp::acceptor(context, any).local_endpoint().port());
}

/// The results of `program` on each rank, as its exit status.
inline std::vector<int> run_forked_ranks(int ranks, const std::function<int(int rank)>& program) {
  const auto port = free_port();
  std::vector<std::unique_ptr<ForkedChild>> children;
  for (int rank = 0; rank < ranks; ++rank) {
    children.push_back(std::make_unique<ForkedChild>([&] {
      setenv("RANK", std::to_string(rank).c_str(), 1);
      setenv("LOCAL_RANK", std::to_string(rank).c_str(), 1);
      setenv("WORLD_SIZE", std::to_string(ranks).c_str(), 1);
      setenv("MASTER_ADDR", "127.0.0.1", 1);
      setenv("MASTER_PORT", port.c_str(), 1);
      return program(rank);
    }));
  }
  std::vector<int> statuses;
  for (auto& child : children) statuses.push_back(child->wait());
  return statuses;
}

}  // namespace bimetal::test
