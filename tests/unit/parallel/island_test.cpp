// Exchanges of an island's ranks by themselves, with a c10d::Backend over the fabric in the place
// of NCCL: on the CPU and on a simulated device, whose memory the host can read.
#include "bimetal/c10d/island.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <torch/csrc/api/include/torch/types.h>
#include <torch/csrc/api/include/torch/utils.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "bimetal/base/error.h"
#include "support/errors.h"
#include "support/process_ranks.h"
#include "support/simulated_device.h"
#include "support/thread_ranks.h"
#include "support/vendor_stand_in.h"

namespace bimetal::c10d {
namespace {

using namespace std::chrono_literals;
using bimetal::testing::library_of;
using bimetal::testing::ProcessRanks;
using bimetal::testing::run_ranks;
using bimetal::testing::SimulatedDevice;
using bimetal::testing::Stuck;
using ::testing::HasSubstr;

Deadline soon() {
  return Deadline::after(60s);
}

enum class Exchange { sum, gather, scatter };

comm::Work start(Island& island, Exchange which, Deadline deadline) {
  const auto flat = torch::ones({6}, torch::kFloat64);
  const std::vector<std::size_t> counts = {2, 2, 2};
  switch (which) {
    case Exchange::sum: return island.all_reduce(flat, comm::DType::float64, deadline);
    case Exchange::gather: return island.gather(flat, counts, comm::DType::float64, deadline);
    case Exchange::scatter: break;
  }
  return island.reduce_scatter(flat, torch::empty({2}, torch::kFloat64), counts,
                               comm::DType::float64, deadline);
}

VendorLibrary stuck_library(int rank, Stuck::How how, c10::intrusive_ptr<Stuck>& stuck) {
  auto library = library_of(rank);
  library.connect = [&stuck, how](const comm::Group& members) {
    stuck = c10::make_intrusive<Stuck>(members, how);
    return stuck;
  };
  return library;
}

// First: ranks are forked from one thread. The vendor library waits for ever, as NCCL would.
TEST(LostOnAnIsland, AKilledRankIsNamedInEveryExchange) {
  for (const auto which : {Exchange::sum, Exchange::gather, Exchange::scatter}) {
    ProcessRanks ranks(3, [which](int rank, comm::Group group, const auto& tell) {
      c10::intrusive_ptr<Stuck> stuck;
      const auto library = stuck_library(rank, Stuck::How::later, stuck);
      const auto island = form_islands(group, torch::kCPU, library);
      const auto work = start(*island, which, Deadline::after(5min));
      while (!stuck->was_called()) std::this_thread::sleep_for(1ms);
      tell("in it");
      work.wait();
    });
    for (int rank = 0; rank < 3; ++rank) ranks.expect(rank, "in it", soon());
    ranks.signal(1, SIGKILL);
    for (const int rank : {0, 2}) {
      const auto outcome = ranks.outcome(rank, soon());
      EXPECT_EQ(outcome.error, ErrorCode::PeerLost) << outcome.message;
      EXPECT_EQ(outcome.blamed, 1) << outcome.message;
    }
  }
}

// It has made no call yet.
TEST(LostOnAnIsland, AKilledRankThatHasNotComeIsNamed) {
  ProcessRanks ranks(3, [](int rank, comm::Group group, const auto& tell) {
    const auto island = form_islands(group, torch::kCPU, library_of(rank));
    tell("there");
    if (rank == 0) std::this_thread::sleep_for(5min);
    start(*island, Exchange::gather, Deadline::after(5min)).wait();
  });
  for (int rank = 0; rank < 3; ++rank) ranks.expect(rank, "there", soon());
  ranks.signal(0, SIGKILL);
  for (const int rank : {1, 2}) {
    const auto outcome = ranks.outcome(rank, soon());
    EXPECT_EQ(outcome.error, ErrorCode::PeerLost) << outcome.message;
    EXPECT_EQ(outcome.blamed, 0) << outcome.message;
  }
}

TEST(StuckOnAnIsland, WhatHangsEndsByItsDeadlineAndIsGivenUp) {
  for (const auto which : {Exchange::sum, Exchange::gather, Exchange::scatter}) {
    run_ranks(3, [which](int rank, comm::Group group) {
      c10::intrusive_ptr<Stuck> stuck;
      const auto island =
          form_islands(group, torch::kCPU, stuck_library(rank, Stuck::How::later, stuck));
      const auto beside = island->beside();
      const auto work = start(*island, which, Deadline::after(300ms));
      EXPECT_THAT(error_of([&] { work.wait(); })->what(), HasSubstr("has not ended in time"));
      EXPECT_TRUE(stuck->was_aborted());
      // Whatever else there is on these cards fails for the same reason.
      EXPECT_TRUE(error_of([&] { start(*beside, which, soon()).wait(); }));
      group.barrier().wait();
    });
  }
}

TEST(StuckOnAnIsland, WhatTheVendorLibraryRefusesIsSaid) {
  run_ranks(3, [](int rank, comm::Group group) {
    c10::intrusive_ptr<Stuck> stuck;
    const auto island =
        form_islands(group, torch::kCPU, stuck_library(rank, Stuck::How::refusing, stuck));
    const auto work = start(*island, Exchange::scatter, soon());
    const auto text = std::string(error_of([&] { work.wait(); })->what());
    EXPECT_THAT(text, HasSubstr("no such card"));
    group.barrier().wait();
  });
}

// A rank that unwinds in a step leaves exchanges that the others do not come to.
TEST(StuckOnAnIsland, TheEndWaitsForNobody) {
  run_ranks(2, [](int rank, comm::Group group) {
    auto island = form_islands(group, torch::kCPU, library_of(rank));
    if (rank == 0) {
      const auto work =
          island->all_reduce(torch::ones({4}), comm::DType::float32, Deadline::after(5min));
      island.reset();
      EXPECT_THAT(error_of([&] { work.wait(); })->what(), HasSubstr("given up the step"));
    }
    group.barrier().wait();
  });
}

// What is exchanged.

struct World {
  std::vector<Vendor> vendors;
  std::vector<std::size_t> counts;
};

constexpr auto kNccl = Vendor::nccl, kRccl = Vendor::rccl, kNone = Vendor::none;
const World kWorlds[] = {
    {{kNccl, kNccl, kNccl}, {3, 3, 3}},          {{kNccl, kNccl, kNccl}, {4, 0, 7}},
    {{kNccl, kNccl, kNccl}, {0, 0, 0}},          {{kNccl, kNccl, kNone}, {2, 2, 2}},
    {{kNone, kNccl, kNccl}, {5, 0, 1}},          {{kNccl, kNccl, kRccl, kRccl}, {1, 4, 0, 2}},
    {{kNccl, kNccl, kRccl, kRccl}, {3, 1, 0, 0}}};

/// On the CPU, and where every rank that has a vendor library has a simulated card.
void on_islands(const std::function<void(Island& island, int rank, const World& world,
                                         const torch::Device& device)>& body) {
  for (const bool simulated : {false, true}) {
    const auto card = simulated ? SimulatedDevice::install() : torch::Device(torch::kCPU);
    for (const auto& world : kWorlds) {
      SCOPED_TRACE(&world - kWorlds);
      run_ranks(static_cast<int>(world.vendors.size()), [&](int rank, comm::Group group) {
        const auto vendor = world.vendors[static_cast<std::size_t>(rank)];
        const auto device = vendor == kNone ? torch::Device(torch::kCPU) : card;
        const auto island = form_islands(group, device, library_of(rank, vendor));
        ASSERT_TRUE(island);
        EXPECT_TRUE(island->in_order());
        body(*island, rank, world, device);
        group.barrier().wait();
      });
    }
  }
}

std::int64_t all_of(const World& world) {
  return static_cast<std::int64_t>(
      std::accumulate(world.counts.begin(), world.counts.end(), std::size_t{0}));
}

torch::Tensor part_of(const torch::Tensor& flat, const World& world, int rank) {
  const auto begin =
      std::accumulate(world.counts.begin(), world.counts.begin() + rank, std::int64_t{0});
  return flat.narrow(0, begin,
                     static_cast<std::int64_t>(world.counts[static_cast<std::size_t>(rank)]));
}

torch::Tensor values_of(int rank, std::int64_t count) {
  return (torch::arange(count, torch::kFloat64) * (rank + 3)).sin();
}

torch::Tensor sum_of_all(const World& world) {
  const auto count = all_of(world);
  auto sum = torch::zeros({count}, torch::kFloat64);
  for (int rank = 0; rank < static_cast<int>(world.vendors.size()); ++rank) {
    sum += values_of(rank, count);
  }
  return sum;
}

TEST(OnIslands, EveryRankGetsThePartsOfAllOthers) {
  on_islands([](Island& island, int rank, const World& world, const torch::Device& device) {
    const auto whole = values_of(7, all_of(world));
    auto flat = torch::full_like(whole, -1);
    part_of(flat, world, rank).copy_(part_of(whole, world, rank));
    const auto there = flat.to(device);
    island.gather(there, world.counts, comm::DType::float64, soon()).wait();
    EXPECT_TRUE(torch::equal(there.to(torch::kCPU), whole));
  });
}

TEST(OnIslands, EveryRankGetsTheSumOfItsPart) {
  on_islands([](Island& island, int rank, const World& world, const torch::Device& device) {
    for (const bool apart : {true, false}) {
      const auto flat = values_of(rank, all_of(world)).to(device);
      auto own = part_of(flat, world, rank);
      if (apart) own = torch::empty_like(own);
      island.reduce_scatter(flat, own, world.counts, comm::DType::float64, soon()).wait();
      EXPECT_TRUE(
          torch::allclose(own.to(torch::kCPU), part_of(sum_of_all(world), world, rank), 0, 1e-12));
    }
  });
}

TEST(OnIslands, EveryRankGetsTheSumAndTheLargest) {
  on_islands([](Island& island, int rank, const World& world, const torch::Device& device) {
    const auto sum = values_of(rank, all_of(world)).to(device);
    island.all_reduce(sum, comm::DType::float64, soon()).wait();
    EXPECT_TRUE(torch::allclose(sum.to(torch::kCPU), sum_of_all(world), 0, 1e-12));
    const auto most = torch::full({2}, rank, torch::kFloat64).to(device);
    island.all_reduce(most, comm::DType::float64, soon(), comm::ReduceOp::max).wait();
    const auto last = static_cast<double>(world.vendors.size() - 1);
    EXPECT_TRUE(torch::equal(most.to(torch::kCPU), torch::full({2}, last, torch::kFloat64)));
  });
}

// Ranks come to their exchanges in unlike orders; the vendor library gets them in one.
TEST(OnIslands, TwoOrdersAtOnceMeet) {
  on_islands([](Island& island, int rank, const World& world, const torch::Device& device) {
    const auto beside = island.beside();
    const auto gathers = [&](Island& by) {
      std::vector<comm::Work> works;
      for (int i = 0; i < 20; ++i) {
        const auto flat = torch::full({all_of(world)}, rank, torch::kFloat64).to(device);
        works.push_back(by.gather(flat, world.counts, comm::DType::float64, soon()));
      }
      return works;
    };
    auto first = gathers(rank % 2 == 0 ? island : *beside);
    auto second = gathers(rank % 2 == 0 ? *beside : island);
    comm::wait_for_all(first);
    comm::wait_for_all(second);
  });
}

TEST(OnIslands, RanksThatAreNotNumberedIslandByIslandAreSaidToBeSo) {
  run_ranks(3, [](int rank, comm::Group group) {
    const auto island =
        form_islands(group, torch::kCPU, library_of(rank, rank == 1 ? kNone : kNccl));
    EXPECT_FALSE(island->in_order());
  });
}

}  // namespace
}  // namespace bimetal::c10d
