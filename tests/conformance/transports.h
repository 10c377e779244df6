#pragma once
// The meshes that every conformance test runs on.

#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <vector>

#include "bimetal/comm/group.h"
#include "conformance/reference.h"
#include "support/in_process_mesh.h"
#include "support/sanitized.h"
#include "support/thread_ranks.h"

namespace bimetal::testing {

/// Far longer than a failure may take to be noticed: a Timeout would say that it was not.
inline constexpr std::chrono::minutes kLong{5};

/// Elements of every size, and each way of adding them, even under sanitizers.
inline std::vector<comm::DType> tested_types() {
  using enum comm::DType;
  if (kSanitized) return {float32, bfloat16, uint8, int64};
  return {std::begin(kAllTypes), std::end(kAllTypes)};
}
inline std::vector<comm::ReduceOp> tested_ops() {
  using enum comm::ReduceOp;
  if (kSanitized) return {sum, avg, max};
  return {std::begin(kAllOps), std::end(kAllOps)};
}

/// Enough of float32 for a ring, for several parts of each segment, and not divisible by anything.
inline constexpr std::size_t kLongCount = kSanitized ? 300007 : 1000003;

/// islands: pairs of ranks share memory, the pairs meet by messages. large: by TCP, and not all
/// ranks are connected from the start.
enum class Transport { in_process, tcp, shm, islands, large };

/// Ranks of which those with the same number in `islands` share memory, as those of one host do.
inline std::vector<comm::Group> make_island_groups(const std::vector<int>& islands,
                                                   comm::GroupOptions options = {}) {
  options.transport = comm::Transport::automatic;
  std::vector<comm::GroupOptions> each;
  for (const int island : islands) {
    each.push_back(options);
    each.back().island = "host " + std::to_string(island);
  }
  return make_groups(make_in_process_meshes(static_cast<int>(islands.size())), each);
}

/// Shared memory has an in-process mesh for its control path.
inline std::vector<comm::Group> make_groups(Transport transport, int size,
                                            comm::GroupOptions options = {}) {
  if (transport == Transport::islands) {
    std::vector<int> islands;
    for (int rank = 0; rank < size; ++rank) islands.push_back(rank / 2);
    return make_island_groups(islands, options);
  }
  options.transport = transport == Transport::shm ? comm::Transport::shm : comm::Transport::tcp;
  const bool large = transport == Transport::large;
  return large || transport == Transport::tcp ? make_tcp_groups(size, options, large)
                                              : make_thread_groups(size, options);
}

struct World {
  Transport transport;
  int size;
};

inline std::string name_of(const World& world) {
  const auto named = [&](const char* name) { return name + std::to_string(world.size); };
  switch (world.transport) {
    case Transport::in_process: return named("InProcess");
    case Transport::tcp: return named("Tcp");
    case Transport::islands: return named("Islands");
    case Transport::large: return named("Large");
    case Transport::shm: break;
  }
  return named("Shm");
}

/// Fixture for tests that run `body(rank, group)` on every rank of one world.
class OnWorlds : public ::testing::TestWithParam<World> {
 protected:
  int size() const { return GetParam().size; }
  void on_ranks(const RankBody& body) {
    run_ranks(make_groups(GetParam().transport, GetParam().size), body);
  }
};

/// All transports in these sizes; under sanitizers up to three ranks, as more run the same code.
inline std::vector<World> worlds(std::vector<int> sizes) {
  if (kSanitized) std::erase_if(sizes, [](int size) { return size > 3; });
  std::vector<World> all;
  for (const auto transport : {Transport::in_process, Transport::tcp, Transport::shm}) {
    for (const int size : sizes) all.push_back({transport, size});
  }
  // Smaller worlds have but one island; islands of more ranks: islands_test.cpp.
  for (const int size : sizes) {
    if (size == 3 || size == 5) all.push_back({Transport::islands, size});
  }
  // Ranks three apart are not connected from the start.
  all.push_back({Transport::large, 6});
  return all;
}

}  // namespace bimetal::testing
