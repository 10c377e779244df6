// Ranks on islands, which sum gradients among themselves before they meet the others: still the
// training that one device would have done. A c10d::Backend over the fabric stands in for NCCL.
#include <gtest/gtest.h>
#include <torch/csrc/api/include/torch/types.h>

#include <atomic>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <vector>

#include "bimetal/base/error.h"
#include "bimetal/c10d/island.h"
#include "golden/rows.h"
#include "golden/training_run.h"
#include "support/thread_ranks.h"
#include "support/vendor_stand_in.h"

namespace bimetal::golden {
namespace {

using bimetal::testing::backend_of;
using bimetal::testing::library_of;
using bimetal::testing::offer_of;
using c10d::Vendor;

struct IslandCase {
  std::string name;
  std::vector<Vendor> vendors;  ///< by rank
  std::vector<std::vector<std::int64_t>> shares;
  std::vector<int> sizes;  ///< of each rank's island
};

void PrintTo(const IslandCase& shared, std::ostream* out) {
  *out << shared.name;
}

// Shares of 0 move about: such ranks take part with zeros, as leaders, too.
const IslandCase island_cases[] = {
    {"TwoAndOne",
     {Vendor::nccl, Vendor::nccl, Vendor::none},
     {{13, 11, 0}, {0, 23, 1}, {8, 8, 8}},
     {2, 2, 1}},
    {"TwoAndTwo",
     {Vendor::nccl, Vendor::rccl, Vendor::nccl, Vendor::rccl},
     {{10, 7, 4, 3}, {0, 12, 0, 12}, {1, 0, 23, 0}},
     {2, 2, 2, 2}},
    {"OneOfThree", {Vendor::rccl, Vendor::rccl, Vendor::rccl}, {{24, 0, 0}, {7, 8, 9}}, {3, 3, 3}},
};

class Islands : public ::testing::TestWithParam<IslandCase> {};

TEST_P(Islands, ParametersAgreeWithOneDevice) {
  const IslandCase& shared = GetParam();
  std::vector<int> sizes(shared.vendors.size());
  TrainingPlan plan{.optimizer = Optimizer::adam, .shares = shared.shares};
  plan.form_island = [&](comm::Group group) {
    const int rank = group.rank();
    auto island = c10d::form_islands(group, torch::kCPU, library_of(rank, shared.vendors[rank]));
    sizes[rank] = island->size();
    return island;
  };
  const auto together = train(plan);
  EXPECT_LE(largest_difference(together.parameters, train_plainly(plan).parameters), 1e-12);
  EXPECT_EQ(sizes, shared.sizes);
}

INSTANTIATE_TEST_SUITE_P(Worlds, Islands, ::testing::ValuesIn(island_cases),
                         [](const auto& param) { return param.param.name; });

// Stages that hand everything on by the vendor library.
TEST(StagesOnAnIsland, TrainAsOneDevice) {
  using parallel::schedule::Kind;
  struct Way {
    Kind schedule;
    int stages;
    int chunks = 1;
    std::int64_t micro_batches = 4;
    std::vector<int> uneven = {};
    std::vector<double> tensor = {};
  };
  const std::vector<Way> ways = {{Kind::one_f_one_b, 3},
                                 {Kind::zero_bubble, 2},
                                 {Kind::interleaved, 2, 2},
                                 {Kind::one_f_one_b, 2, 1, 7, {1, 2}},
                                 {Kind::one_f_one_b, 2, 1, 4, {}, {1, 1}}};
  TrainingPlan plan{.learns = Learns::gpt2,
                    .dropout = 0.1,
                    .blocks = 4,
                    .optimizer = Optimizer::adamw,
                    .shares = {{24}},
                    .steps = 4};
  const auto expected = train_plainly(plan);
  for (const auto& way : ways) {
    plan.mesh = {.stages = way.stages, .replicas = way.uneven.empty() ? 1 : 0};
    plan.mesh.uneven = way.uneven;
    plan.schedule = way.schedule;
    plan.chunks = way.chunks;
    plan.micro_batches = way.micro_batches;
    plan.tensor = way.tensor;
    plan.cuts = cuts_of(plan, Cuts::late);
    plan.vendor = [](int rank) { return testing::library_of(rank); };
    EXPECT_LE(largest_difference(train(plan).parameters, expected.parameters), 1e-12)
        << "way " << &way - ways.data();
  }
}

/// Islands of ranks with these vendors, whose library counts its calls.
c10d::FormIsland counted(std::vector<Vendor> vendors, std::shared_ptr<std::atomic<int>> calls) {
  return [=](const comm::Group& group) {
    auto library = library_of(group.rank(), vendors[static_cast<std::size_t>(group.rank())]);
    library.connect = [calls](const comm::Group& members) {
      return c10::make_intrusive<bimetal::testing::StandIn>(members, calls);
    };
    return c10d::form_islands(group, torch::kCPU, library);
  };
}

// Gradients and parameters of unequal and equal shards, of which some ranks have none.
TEST(ShardsOnIslands, TrainAsOneDevice) {
  constexpr auto kNccl = Vendor::nccl, kRccl = Vendor::rccl, kNone = Vendor::none;
  struct Way {
    std::vector<Vendor> vendors;
    std::vector<double> shards;
    bool by_island = true;
  };
  const std::vector<Way> ways = {{{kNccl, kNccl}, {1, 1}},
                                 {{kNccl, kNccl, kNccl}, {5, 0, 2}},
                                 {{kNone, kNccl, kNccl}, {1, 3, 2}},
                                 {{kNccl, kNccl, kRccl, kRccl}, {2, 1, 1, 0}},
                                 {{kNccl, kNone, kNccl}, {1, 1, 1}, false}};
  for (const auto& way : ways) {
    const auto ranks = way.vendors.size();
    TrainingPlan plan{.optimizer = Optimizer::adam, .steps = 4, .micro_batch = 5};
    plan.shares = {std::vector<std::int64_t>(ranks, 0), std::vector<std::int64_t>(ranks, 0)};
    for (std::int64_t sample = 0; sample < 24; ++sample) {
      ++plan.shares[0][static_cast<std::size_t>(sample) % ranks];
    }
    plan.shares[1].front() = 1;
    plan.shares[1].back() = 23;
    const auto expected = train_plainly(plan);
    plan.shards = way.shards;
    for (plan.zero_level = 1; plan.zero_level <= 3; ++plan.zero_level) {
      const auto calls = std::make_shared<std::atomic<int>>(0);
      plan.form_island = counted(way.vendors, calls);
      EXPECT_LE(largest_difference(train(plan).parameters, expected.parameters), 1e-12)
          << "way " << &way - ways.data() << ", level " << plan.zero_level;
      EXPECT_EQ(*calls > 0, way.by_island);
    }
  }
}

TEST(ShardsOnIslands, KeptElsewhereAndUpdatedInBackward) {
  using parallel::shard::Kept;
  const auto calls = std::make_shared<std::atomic<int>>(0);
  TrainingPlan plan{.optimizer = Optimizer::adamw, .shares = {{13, 11}, {0, 24}}, .micro_batch = 5};
  const auto expected = train_plainly(plan);
  plan.zero_level = 3;
  plan.shards = {2, 1};
  plan.form_island = counted({Vendor::nccl, Vendor::nccl}, calls);
  plan.update_in_backward = true;
  plan.kept = {Kept::OnDisk, Kept::OnHost};
  EXPECT_LE(largest_difference(train(plan).parameters, expected.parameters), 1e-12);
  plan.update_in_backward = false;
  plan.copies = true;
  plan.kept = {Kept::OnDevice};
  EXPECT_LE(largest_difference(train(plan).parameters, expected.parameters), 1e-12);
}

// All sums of units, and the gathers of sequences in parts.
TEST(TensorsOnIslands, TrainAsOneDevice) {
  using parallel::tensor::Between;
  struct Way {
    std::vector<Vendor> vendors;
    std::vector<double> tensor;
    int stages = 1;
    int level = 0;
  };
  constexpr auto kNccl = Vendor::nccl, kNone = Vendor::none;
  const std::vector<Way> ways = {{{kNccl, kNccl}, {1, 1}},
                                 {{kNccl, kNccl, kNone}, {1, 2, 1}},
                                 {{kNccl, kNccl, kNccl, kNccl}, {1, 2}, 2},
                                 {{kNccl, kNccl, kNccl, kNccl}, {1, 1}, 1, 3}};
  for (const auto& way : ways) {
    for (const auto between : {Between::whole, Between::parts}) {
      if (between == Between::parts && (way.stages > 1 || way.level > 0)) continue;
      TrainingPlan plan{.learns = Learns::gpt2, .blocks = 4, .optimizer = Optimizer::adamw};
      plan.steps = 3;
      const auto replicas = way.vendors.size() / way.tensor.size() / way.stages;
      plan.shares = {std::vector<std::int64_t>(replicas, 24 / static_cast<std::int64_t>(replicas))};
      const auto expected = train_plainly(plan);
      plan.tensor = way.tensor;
      plan.between = between;
      plan.zero_level = way.level;
      if (way.level > 0) plan.shards = {2, 1};
      if (way.stages > 1) {
        plan.mesh = {.stages = way.stages, .replicas = 1};
        plan.micro_batches = 4;
        plan.cuts = cuts_of(plan, Cuts::late);
      }
      const auto calls = std::make_shared<std::atomic<int>>(0);
      plan.form_island = counted(way.vendors, calls);
      EXPECT_LE(largest_difference(train(plan).parameters, expected.parameters), 1e-12)
          << "way " << &way - ways.data() << (between == Between::parts ? ", in parts" : "");
      EXPECT_GT(*calls, 0);
    }
  }
}

TEST(IslandsFormed, NobodyHasAPartner) {
  testing::run_ranks(2, [](int rank, comm::Group group) {
    const auto connect = [](comm::Group) -> c10d::BackendPtr {
      ADD_FAILURE() << "nothing is to be connected";
      return nullptr;
    };
    EXPECT_FALSE(c10d::form_islands(group, torch::kCPU, {}));
    EXPECT_FALSE(c10d::form_islands(group, torch::kCPU, {{}, connect}));
    const auto vendor = rank == 0 ? Vendor::nccl : Vendor::rccl;
    EXPECT_FALSE(c10d::form_islands(group, torch::kCPU, {offer_of(rank, vendor), connect}));
    const auto same_card = offer_of(0, Vendor::nccl);
    EXPECT_FALSE(c10d::form_islands(group, torch::kCPU, {same_card, connect}));
  });
}

TEST(IslandsFormed, AVendorLibraryThatFailsIsNamedOnEveryRank) {
  testing::run_ranks(3, [](int rank, comm::Group group) {
    try {
      auto library = library_of(rank, rank < 2 ? Vendor::nccl : Vendor::none);
      library.connect = [&](const comm::Group& members) {
        auto made = backend_of(members);
        if (rank == 1) throw std::runtime_error("no such card");
        return made;
      };
      c10d::form_islands(group, torch::kCPU, library);
      FAIL() << "rank " << rank;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::System);
      EXPECT_EQ(error.rank(), 1);
      EXPECT_EQ(std::string(error.what()).find("no such card") != std::string::npos, rank == 1);
    }
  });
}

// Rank 2, an island of its own, never comes: ranks 0 and 1 must both be told, the member by its
// leader.
TEST(IslandsFormed, AMissingRankEndsTheSumOnTheWholeIsland) {
  testing::run_ranks(3, [](int rank, comm::Group group) {
    const auto island = c10d::form_islands(
        group, torch::kCPU, library_of(rank, rank < 2 ? Vendor::nccl : Vendor::none));
    ASSERT_TRUE(island);
    if (rank < 2) {
      const auto work = island->all_reduce(torch::ones({1000}), comm::DType::float32,
                                           Deadline::after(std::chrono::seconds(1)));
      EXPECT_THROW(work.wait(), Error);
    }
    group.barrier().wait();
  });
}

}  // namespace
}  // namespace bimetal::golden
