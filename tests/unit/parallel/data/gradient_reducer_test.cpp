#include "bimetal/parallel/data/gradient_reducer.h"

#include <gtest/gtest.h>
#include <torch/csrc/api/include/torch/autograd.h>
#include <torch/csrc/api/include/torch/optim.h>
#include <torch/csrc/api/include/torch/types.h>

#include <chrono>
#include <cstdint>
#include <fstream>
#include <ostream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "support/thread_ranks.h"

namespace bimetal::parallel {

void PrintTo(GradientHome home, std::ostream* out) {
  *out << (home == GradientHome::bucket ? "Bucket" : "Tensor");
}

namespace {

// Both homes of gradients run on the CPU: `tensor` is the way of an accelerator's gradients.
class GradientReducerTest : public ::testing::TestWithParam<GradientHome> {
 protected:
  ReducerOptions options() const {
    return {.first_bucket_bytes = 8,
            .bucket_bytes = 100,
            .timeout = std::chrono::seconds(60),
            .home = GetParam()};
  }
};

std::vector<torch::Tensor> leaves(torch::ScalarType dtype = torch::kFloat32) {
  const auto options = torch::dtype(dtype).requires_grad(true);
  return {torch::ones({4, 3}, options), torch::ones({5}, options), torch::ones({2, 2}, options),
          torch::ones({30}, options)};
}

torch::Tensor sum_of(const std::vector<torch::Tensor>& parameters, double factor) {
  torch::Tensor total = torch::zeros({}, parameters[0].options().requires_grad(false));
  for (const auto& parameter : parameters) total = total + factor * parameter.sum();
  return total;
}

void expect_gradients(const std::vector<torch::Tensor>& parameters, double value) {
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const auto& gradient = parameters[i].grad();
    ASSERT_TRUE(gradient.defined()) << "parameter " << i;
    EXPECT_TRUE(gradient.equal(torch::full_like(gradient, value))) << "parameter " << i;
    EXPECT_EQ(gradient.sizes(), parameters[i].sizes());
  }
}

TEST_P(GradientReducerTest, SumsOverRanksStepAfterStep) {
  testing::run_ranks(3, [&](int rank, comm::Group group) {
    const auto parameters = leaves();
    GradientReducer reducer(parameters, group, options());
    for (int step = 1; step <= 4; ++step) {
      reducer.begin();
      for (const auto& parameter : parameters) EXPECT_FALSE(parameter.grad().defined());
      reducer.reduce_during([&] { sum_of(parameters, step * (1 + rank)).backward(); });
      reducer.finish();
      expect_gradients(parameters, 6 * step);
    }
  });
}

TEST_P(GradientReducerTest, EveryFloatingPointTypeAndTheirMixture) {
  testing::run_ranks(2, [&](int rank, comm::Group group) {
    std::vector<torch::Tensor> parameters;
    for (const auto dtype : {torch::kFloat32, torch::kFloat64, torch::kFloat16, torch::kBFloat16}) {
      for (auto& parameter : leaves(dtype)) parameters.push_back(parameter);
    }
    GradientReducer reducer(parameters, group, options());
    reducer.begin();
    reducer.reduce_during([&] {
      torch::Tensor total = torch::zeros({});
      for (const auto& p : parameters) total = total + (1 + rank) * p.sum().to(torch::kFloat32);
      total.backward();
    });
    reducer.finish();
    expect_gradients(parameters, 3);
  });
}

TEST_P(GradientReducerTest, PassesOutsideReduceDuringAddUpLocally) {
  testing::run_ranks(2, [&](int rank, comm::Group group) {
    const auto parameters = leaves();
    GradientReducer reducer(parameters, group, options());
    reducer.begin();
    for (int i = 0; i < 3; ++i) sum_of(parameters, 1).backward();
    expect_gradients(parameters, 3);  // nothing has been reduced
    reducer.reduce_during([&] { sum_of(parameters, 10).backward(); });
    reducer.finish();
    expect_gradients(parameters, 26);
  });
}

TEST_P(GradientReducerTest, FinishReducesWhatIsThereWithoutALastPass) {
  testing::run_ranks(2, [&](int rank, comm::Group group) {
    const auto parameters = leaves();
    GradientReducer reducer(parameters, group, options());
    reducer.begin();
    sum_of(parameters, 1 + rank).backward();
    reducer.finish();
    expect_gradients(parameters, 3);
  });
}

TEST_P(GradientReducerTest, RankWithoutAnyPassAddsZeros) {
  testing::run_ranks(3, [&](int rank, comm::Group group) {
    const auto parameters = leaves();
    GradientReducer reducer(parameters, group, options());
    for (int step = 0; step < 3; ++step) {
      reducer.begin();
      if (rank != step) {
        reducer.reduce_during([&] { sum_of(parameters, 5).backward(); });
      }
      reducer.finish();
      expect_gradients(parameters, 10);
    }
  });
}

TEST_P(GradientReducerTest, UnusedParameters) {
  testing::run_ranks(2, [&](int rank, comm::Group group) {
    const auto parameters = leaves();
    GradientReducer reducer(parameters, group, options());
    for (int step = 0; step < 2; ++step) {
      reducer.begin();
      // 0: used by both; 1: by rank 0 alone; 2: by rank 1 alone; 3: by none.
      reducer.reduce_during(
          [&] { (parameters[0].sum() + 2 * parameters[1 + rank].sum()).backward(); });
      reducer.finish();
      EXPECT_TRUE(parameters[0].grad().equal(torch::full({4, 3}, 2.f)));
      EXPECT_TRUE(parameters[1].grad().equal(torch::full({5}, 2.f)));
      EXPECT_TRUE(parameters[2].grad().equal(torch::full({2, 2}, 2.f)));
      EXPECT_FALSE(parameters[3].grad().defined());
    }
  });
}

// The last pass does not reach what an earlier one did.
TEST_P(GradientReducerTest, ParametersUsedOnlyBeforeTheLastPassCount) {
  testing::run_ranks(2, [&](int rank, comm::Group group) {
    const auto parameters = leaves();
    GradientReducer reducer(parameters, group, options());
    reducer.begin();
    parameters[1].sum().backward();
    reducer.reduce_during([&] { parameters[0].sum().backward(); });
    reducer.finish();
    EXPECT_TRUE(parameters[0].grad().equal(torch::full({4, 3}, 2.f)));
    EXPECT_TRUE(parameters[1].grad().equal(torch::full({5}, 2.f)));
    EXPECT_FALSE(parameters[2].grad().defined());
  });
}

// Elements travel in row-major order, so a rank may lay its tensors out as its device likes.
TEST_P(GradientReducerTest, RanksMayUseOtherStrides) {
  testing::run_ranks(2, [&](int rank, comm::Group group) {
    auto weight = torch::ones({2, 3, 4, 4});
    if (rank == 1) weight = weight.contiguous(torch::MemoryFormat::ChannelsLast);
    const std::vector<torch::Tensor> parameters = {weight.requires_grad_()};
    const auto slope = torch::arange(96, torch::kFloat32).reshape({2, 3, 4, 4});
    GradientReducer reducer(parameters, group, options());
    reducer.begin();
    reducer.reduce_during([&] { (parameters[0] * slope).sum().backward(); });
    reducer.finish();
    EXPECT_TRUE(parameters[0].grad().equal(2 * slope));
  });
}

TEST_P(GradientReducerTest, SparseGradientsBecomeDense) {
  testing::run_ranks(2, [&](int rank, comm::Group group) {
    const auto table = torch::ones({6, 2}, torch::requires_grad());
    GradientReducer reducer({table}, group, options());
    reducer.begin();
    reducer.reduce_during([&] {
      const auto rows = torch::tensor({rank, 3}, torch::kInt64);
      torch::embedding(table, rows, -1, false, /*sparse=*/true).sum().backward();
    });
    reducer.finish();
    EXPECT_TRUE(table.grad().select(1, 0).equal(torch::tensor({1.f, 1.f, 0.f, 2.f, 0.f, 0.f})));
  });
}

TEST_P(GradientReducerTest, FailedPassStillTakesPart) {
  testing::run_ranks(2, [&](int rank, comm::Group group) {
    const auto parameters = leaves();
    GradientReducer reducer(parameters, group, options());
    for (int step = 0; step < 2; ++step) {
      reducer.begin();
      if (rank == 0) {
        reducer.reduce_during([&] { sum_of(parameters, 4).backward(); });
      } else {
        const auto fail = [] { throw std::range_error("out of memory, say"); };
        EXPECT_THROW(reducer.reduce_during(fail), std::range_error);
      }
      reducer.finish();
      expect_gradients(parameters, 4);
    }
  });
}

TEST_P(GradientReducerTest, RankAloneKeepsItsGradients) {
  testing::run_ranks(1, [&](int rank, comm::Group group) {
    const auto parameters = leaves();
    GradientReducer reducer(parameters, group, options());
    for (int step = 0; step < 2; ++step) {
      reducer.begin();
      reducer.reduce_during([&] { parameters[0].sum().backward(); });
      reducer.finish();
      EXPECT_TRUE(parameters[0].grad().equal(torch::ones({4, 3})));
      EXPECT_FALSE(parameters[1].grad().defined());
    }
  });
}

TEST_P(GradientReducerTest, OptimizersMayClearGradientsEitherWay) {
  testing::run_ranks(2, [&](int rank, comm::Group group) {
    const auto parameters = leaves();
    torch::optim::SGD sgd(parameters, torch::optim::SGDOptions(0).momentum(0.9));
    GradientReducer reducer(parameters, group, options());
    for (const bool set_to_none : {false, true, false}) {
      reducer.begin();
      reducer.reduce_during([&] { sum_of(parameters, 1).backward(); });
      reducer.finish();
      expect_gradients(parameters, 2);
      sgd.step();
      sgd.zero_grad(set_to_none);
    }
  });
}

// Momentum is an average of past gradients: it must not share memory with the present ones.
TEST_P(GradientReducerTest, OptimizerStateDoesNotFollowLaterGradients) {
  testing::run_ranks(2, [&](int rank, comm::Group group) {
    const auto reduced = leaves();
    const auto alone = leaves();
    torch::optim::SGD reduced_sgd(reduced, torch::optim::SGDOptions(0.1).momentum(0.9));
    torch::optim::SGD alone_sgd(alone, torch::optim::SGDOptions(0.1).momentum(0.9));
    GradientReducer reducer(reduced, group, options());
    for (int step = 1; step <= 5; ++step) {
      reducer.begin();
      reducer.reduce_during([&] { sum_of(reduced, step).backward(); });
      reducer.finish();
      reduced_sgd.step();
      alone_sgd.zero_grad();
      sum_of(alone, 2 * step).backward();
      alone_sgd.step();
    }
    for (std::size_t i = 0; i < alone.size(); ++i) EXPECT_TRUE(reduced[i].equal(alone[i]));
  });
}

TEST_P(GradientReducerTest, LeavesNoHooksBehind) {
  testing::run_ranks(2, [&](int rank, comm::Group group) {
    const auto parameters = leaves();
    { GradientReducer reducer(parameters, group, options()); }
    for (const auto& parameter : parameters) {
      EXPECT_TRUE(torch::autograd::impl::grad_accumulator(parameter)->post_hooks().empty());
    }
    sum_of(parameters, 1).backward();
    expect_gradients(parameters, 1);
  });
}

// A reducer may go while its buckets are under way: the fabric still owns their memory.
TEST_P(GradientReducerTest, MayBeDestroyedBeforeTheSumsAreThere) {
  testing::run_ranks(2, [&](int rank, comm::Group group) {
    const auto parameters = leaves();
    {
      GradientReducer reducer(parameters, group, options());
      reducer.begin();
      reducer.reduce_during([&] { sum_of(parameters, 1).backward(); });
    }
    group.barrier().wait();
  });
}

TEST_P(GradientReducerTest, TimesOfAStep) {
  testing::run_ranks(2, [&](int rank, comm::Group group) {
    const auto parameters = leaves();
    GradientReducer reducer(parameters, group, options());
    EXPECT_EQ(reducer.communicate_seconds(), 0);
    reducer.begin();
    group.barrier().wait();
    if (rank == 1) std::this_thread::sleep_for(std::chrono::milliseconds(300));
    reducer.reduce_during([&] { sum_of(parameters, 1).backward(); });
    reducer.finish();
    auto wait = reducer.wait_seconds();
    EXPECT_GT(reducer.communicate_seconds(), 0);

    std::vector<double> waits(2);
    group.all_gather({&wait, 1, comm::DType::float64}, comm::buffer(waits)).wait();
    EXPECT_GT(waits[0], waits[1]);  // rank 0 has waited for rank 1
    reducer.begin();
    EXPECT_EQ(reducer.wait_seconds(), 0);
    reducer.finish();
  });
}

// What tells who had a gradient travels exactly beside it.
TEST_P(GradientReducerTest, CompressedGradientsComeFromWhereTheyWere) {
  for (const auto scheme : {comm::Scheme::bfloat16, comm::Scheme::int8, comm::Scheme::topk,
                            comm::Scheme::powersgd, comm::Scheme::sign}) {
    testing::run_ranks(3, [&](int rank, comm::Group group) {
      const auto parameters = leaves();
      auto how = options();
      how.compression.compression = {.scheme = scheme, .density = 0.5, .rank = 1};
      GradientReducer reducer(parameters, group, how);
      for (int step = 0; step < 3; ++step) {
        reducer.begin();
        reducer.reduce_during([&] {
          auto loss = parameters[1].sum() + parameters[2].sum();
          if (rank == 1) loss = loss + 10 * parameters[0].sum();
          loss.backward();
        });
        reducer.finish();
        EXPECT_FALSE(parameters[3].grad().defined()) << "nobody used it";
        for (int i = 0; i < 3; ++i) ASSERT_TRUE(parameters[i].grad().defined()) << i;
        if (scheme == comm::Scheme::topk || scheme == comm::Scheme::sign) continue;
        EXPECT_TRUE(parameters[0].grad().allclose(torch::full({4, 3}, 10.f), 0.02, 0)) << step;
        EXPECT_TRUE(parameters[1].grad().allclose(torch::full({5}, 3.f), 0.02, 0)) << step;
      }
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Homes, GradientReducerTest,
                         ::testing::Values(GradientHome::bucket, GradientHome::tensor),
                         ::testing::PrintToStringParamName());

// On the CPU nothing is copied back.
TEST(GradientReducer, GradientsShareTheBucketsMemoryOnTheCpu) {
  testing::run_ranks(2, [](int rank, comm::Group group) {
    const auto parameters = leaves();
    GradientReducer reducer(parameters, group, {.timeout = std::chrono::seconds(60)});
    reducer.begin();
    reducer.reduce_during([&] { sum_of(parameters, 1).backward(); });
    reducer.finish();
    EXPECT_EQ(parameters[2].grad().storage().data_ptr().get(),
              parameters[3].grad().storage().data_ptr().get());
  });
}

#ifdef __linux__

/// Whether `address` lies in a mapping of a memory file of ours.
bool in_shared_memory(const void* address) {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    std::uintptr_t first = 0, last = 0;
    char dash = 0;
    std::istringstream range(line);
    range >> std::hex >> first >> dash >> last;
    const auto wanted = reinterpret_cast<std::uintptr_t>(address);
    if (wanted >= first && wanted < last) return line.find("memfd:bimetal") != std::string::npos;
  }
  return false;
}

// So that the ranks of one host sum them where they are.
TEST(GradientReducer, BucketsLieInMemoryThatRanksOfOneHostShare) {
  testing::run_ranks(2, [](int rank, comm::Group group) {
    const auto parameters = leaves();
    GradientReducer reducer(parameters, group, {.timeout = std::chrono::seconds(60)});
    reducer.begin();
    reducer.reduce_during([&] { sum_of(parameters, 1 + rank).backward(); });
    reducer.finish();
    expect_gradients(parameters, 3);
    EXPECT_EQ(in_shared_memory(parameters[0].grad().const_data_ptr()),
              group.transport() == comm::Transport::shm);
    EXPECT_EQ(group.transport(), comm::Transport::shm);
  });
}

#endif

// A rank on an accelerator copies into memory of its own; the others are not to wait for it.
TEST(GradientReducer, RanksMayDifferInWhereTheirGradientsLive) {
  testing::run_ranks(2, [](int rank, comm::Group group) {
    const auto parameters = leaves();
    GradientReducer reducer(parameters, group,
                            {.timeout = std::chrono::seconds(60),
                             .home = rank == 0 ? GradientHome::bucket : GradientHome::tensor});
    reducer.begin();
    reducer.reduce_during([&] { sum_of(parameters, 1 + rank).backward(); });
    reducer.finish();
    expect_gradients(parameters, 3);
  });
}

// A gradient may outlive the reducer and its group.
TEST(GradientReducer, GradientsKeepTheirMemoryAlive) {
  std::vector<std::vector<torch::Tensor>> kept(2);
  testing::run_ranks(2, [&](int rank, comm::Group group) {
    kept[rank] = leaves();
    GradientReducer reducer(kept[rank], group, {.timeout = std::chrono::seconds(60)});
    reducer.begin();
    reducer.reduce_during([&] { sum_of(kept[rank], 2).backward(); });
    reducer.finish();
  });
  for (const auto& parameters : kept) expect_gradients(parameters, 4);
}

}  // namespace
}  // namespace bimetal::parallel
