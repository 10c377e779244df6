#pragma once
// The meshes that every conformance test runs on.

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "bimetal/comm/group.h"
#include "support/thread_ranks.h"

namespace bimetal::testing {

enum class Transport { in_process, tcp, shm };

/// Shared memory has an in-process mesh for its control path.
inline std::vector<comm::Group> make_groups(Transport transport, int size,
                                            comm::GroupOptions options = {}) {
  options.transport = transport == Transport::shm ? comm::Transport::shm : comm::Transport::tcp;
  return transport == Transport::tcp ? make_tcp_groups(size, options)
                                     : make_thread_groups(size, options);
}

struct World {
  Transport transport;
  int size;
};

inline std::string name_of(const World& world) {
  switch (world.transport) {
    case Transport::in_process: return "InProcess" + std::to_string(world.size);
    case Transport::tcp: return "Tcp" + std::to_string(world.size);
    case Transport::shm: break;
  }
  return "Shm" + std::to_string(world.size);
}

/// Fixture for tests that run `body(rank, group)` on every rank of one world.
class OnWorlds : public ::testing::TestWithParam<World> {
 protected:
  int size() const { return GetParam().size; }
  void on_ranks(const RankBody& body) {
    run_ranks(make_groups(GetParam().transport, GetParam().size), body);
  }
};

inline std::vector<World> worlds(std::initializer_list<int> sizes) {
  std::vector<World> all;
  for (const auto transport : {Transport::in_process, Transport::tcp, Transport::shm}) {
    for (const int size : sizes) all.push_back({transport, size});
  }
  return all;
}

}  // namespace bimetal::testing
