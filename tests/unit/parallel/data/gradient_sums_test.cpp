// How a ReplicatedModel sums gradients, pass by pass and bucket by bucket.

#include <gtest/gtest.h>
#include <torch/csrc/api/include/torch/autograd.h>
#include <torch/csrc/api/include/torch/optim.h>
#include <torch/csrc/api/include/torch/types.h>

#include <chrono>
#include <cstdint>
#include <fstream>
#include <functional>
#include <ostream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "bimetal/parallel/data/replicated_model.h"
#include "support/thread_ranks.h"

namespace bimetal::parallel {

void PrintTo(GradientHome home, std::ostream* out) {
  *out << (home == GradientHome::bucket ? "Bucket" : "Tensor");
}

namespace {

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

/// A rank with its parameters and what sums their gradients.
struct Rank {
  Rank(int number, comm::Group group, const ReplicatedModelOptions& options,
       std::vector<torch::Tensor> parameters = leaves())
      : number(number), group(group), parameters(parameters), model(state(), group, options) {}

  /// A step of one pass, whose gradients are all `factor`.
  void step(double factor) {
    step([&] { sum_of(parameters, factor).backward(); });
  }
  void step(const std::function<void()>& pass) {
    model.begin_step(1);
    model.run_pass(pass, true);
    model.finish_step();
  }

  task::ModelState state() const {
    task::ModelState state;
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      state.parameters.push_back({std::to_string(i), parameters[i]});
    }
    return state;
  }

  int number;
  comm::Group group;
  std::vector<torch::Tensor> parameters;
  ReplicatedModel model;
};

using Body = std::function<void(Rank&)>;

void on_ranks(int ranks, const ReplicatedModelOptions& options, const Body& body) {
  testing::run_ranks(ranks, [&](int number, comm::Group group) {
    Rank rank(number, group, options);
    body(rank);
  });
}

const ReplicatedModelOptions kDefaults{.timeout = std::chrono::seconds(60)};

// Both homes of gradients run on the CPU: `tensor` is the way of an accelerator's gradients.
class GradientSumsTest : public ::testing::TestWithParam<GradientHome> {
 protected:
  ReplicatedModelOptions options() const {
    return {.bucket_bytes = 100,
            .first_bucket_bytes = 8,
            .timeout = std::chrono::seconds(60),
            .home = GetParam()};
  }
  void on_ranks(int ranks, const Body& body) const { parallel::on_ranks(ranks, options(), body); }
};

TEST_P(GradientSumsTest, SumsOverRanksStepAfterStep) {
  on_ranks(3, [](Rank& rank) {
    for (int step = 1; step <= 4; ++step) {
      rank.model.begin_step(1);
      for (const auto& parameter : rank.parameters) EXPECT_FALSE(parameter.grad().defined());
      rank.model.run_pass([&] { sum_of(rank.parameters, step * (1 + rank.number)).backward(); },
                          true);
      rank.model.finish_step();
      expect_gradients(rank.parameters, 6 * step);
    }
  });
}

TEST_P(GradientSumsTest, RankWithoutAnyPassAddsZeros) {
  on_ranks(3, [](Rank& rank) {
    for (int step = 0; step < 3; ++step) {
      rank.model.begin_step(1);
      if (rank.number != step) {
        rank.model.run_pass([&] { sum_of(rank.parameters, 5).backward(); }, true);
      }
      rank.model.finish_step();
      expect_gradients(rank.parameters, 10);
    }
  });
}

TEST_P(GradientSumsTest, UnusedParameters) {
  on_ranks(2, [](Rank& rank) {
    const auto& parameters = rank.parameters;
    for (int step = 0; step < 2; ++step) {
      // 0: used by both; 1: by rank 0 alone; 2: by rank 1 alone; 3: by none.
      rank.step([&] { (parameters[0].sum() + 2 * parameters[1 + rank.number].sum()).backward(); });
      expect_gradients({parameters.begin(), parameters.begin() + 3}, 2);
      EXPECT_FALSE(parameters[3].grad().defined());
    }
  });
}

// The last pass does not reach what an earlier one did.
TEST_P(GradientSumsTest, ParametersUsedOnlyBeforeTheLastPassCount) {
  on_ranks(2, [](Rank& rank) {
    const auto& parameters = rank.parameters;
    rank.model.begin_step(1);
    parameters[1].sum().backward();
    rank.model.run_pass([&] { parameters[0].sum().backward(); }, true);
    rank.model.finish_step();
    expect_gradients({parameters.begin(), parameters.begin() + 2}, 2);
    EXPECT_FALSE(parameters[2].grad().defined());
  });
}

// Elements travel in row-major order, so a rank may lay its tensors out as its device likes.
TEST_P(GradientSumsTest, RanksMayUseOtherStrides) {
  testing::run_ranks(2, [&](int number, comm::Group group) {
    auto weight = torch::ones({2, 3, 4, 4});
    if (number == 1) weight = weight.contiguous(torch::MemoryFormat::ChannelsLast);
    const auto slope = torch::arange(96, torch::kFloat32).reshape({2, 3, 4, 4});
    Rank rank(number, group, options(), {weight.requires_grad_()});
    rank.step([&] { (weight * slope).sum().backward(); });
    EXPECT_TRUE(weight.grad().equal(2 * slope));
  });
}

TEST_P(GradientSumsTest, SparseGradientsBecomeDense) {
  testing::run_ranks(2, [&](int number, comm::Group group) {
    const auto table = torch::ones({6, 2}, torch::requires_grad());
    Rank rank(number, group, options(), {table});
    rank.step([&] {
      const auto rows = torch::tensor({number, 3}, torch::kInt64);
      torch::embedding(table, rows, -1, false, /*sparse=*/true).sum().backward();
    });
    EXPECT_TRUE(table.grad().select(1, 0).equal(torch::tensor({1.f, 1.f, 0.f, 2.f, 0.f, 0.f})));
  });
}

TEST_P(GradientSumsTest, FailedPassStillTakesPart) {
  on_ranks(2, [](Rank& rank) {
    for (int step = 0; step < 2; ++step) {
      rank.model.begin_step(1);
      if (rank.number == 0) {
        rank.model.run_pass([&] { sum_of(rank.parameters, 4).backward(); }, true);
      } else {
        const auto fail = [] { throw std::range_error("out of memory, say"); };
        EXPECT_THROW(rank.model.run_pass(fail, true), std::range_error);
      }
      rank.model.finish_step();
      expect_gradients(rank.parameters, 4);
    }
  });
}

TEST_P(GradientSumsTest, OptimizersMayClearGradientsEitherWay) {
  on_ranks(2, [](Rank& rank) {
    torch::optim::SGD sgd(rank.parameters, torch::optim::SGDOptions(0).momentum(0.9));
    for (const bool set_to_none : {false, true, false}) {
      rank.step(1);
      expect_gradients(rank.parameters, 2);
      sgd.step();
      sgd.zero_grad(set_to_none);
    }
  });
}

TEST_P(GradientSumsTest, LeavesNoHooksBehind) {
  testing::run_ranks(2, [&](int rank, comm::Group group) {
    const auto parameters = leaves();
    { Rank(rank, group, options(), parameters); }
    for (const auto& parameter : parameters) {
      EXPECT_TRUE(torch::autograd::impl::grad_accumulator(parameter)->post_hooks().empty());
    }
    sum_of(parameters, 1).backward();
    expect_gradients(parameters, 1);
  });
}

// It may go while its buckets are under way: the fabric still owns their memory.
TEST_P(GradientSumsTest, MayBeDestroyedBeforeTheSumsAreThere) {
  testing::run_ranks(2, [&](int rank, comm::Group group) {
    const auto parameters = leaves();
    {
      Rank one(rank, group, options(), parameters);
      one.model.begin_step(1);
      one.model.run_pass([&] { sum_of(parameters, 1).backward(); }, true);
    }
    group.barrier().wait();
  });
}

// The counts of ranks that had a gradient travel exactly beside it.
TEST_P(GradientSumsTest, CompressedGradientsComeFromWhereTheyWere) {
  for (const auto scheme : {comm::Scheme::bfloat16, comm::Scheme::int8, comm::Scheme::topk,
                            comm::Scheme::powersgd, comm::Scheme::sign}) {
    auto how = options();
    how.compression.compression = {.scheme = scheme, .density = 0.5, .rank = 1};
    parallel::on_ranks(3, how, [&](Rank& rank) {
      const auto& parameters = rank.parameters;
      for (int step = 0; step < 3; ++step) {
        rank.step([&] {
          auto loss = parameters[1].sum() + parameters[2].sum();
          if (rank.number == 1) loss = loss + 10 * parameters[0].sum();
          loss.backward();
        });
        EXPECT_FALSE(parameters[3].grad().defined()) << "nobody used it";
        for (int i = 0; i < 3; ++i) ASSERT_TRUE(parameters[i].grad().defined()) << i;
        if (scheme == comm::Scheme::topk || scheme == comm::Scheme::sign) continue;
        EXPECT_TRUE(parameters[0].grad().allclose(torch::full({4, 3}, 10.f), 0.02, 0)) << step;
        EXPECT_TRUE(parameters[1].grad().allclose(torch::full({5}, 3.f), 0.02, 0)) << step;
      }
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Homes, GradientSumsTest,
                         ::testing::Values(GradientHome::bucket, GradientHome::tensor),
                         ::testing::PrintToStringParamName());

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
TEST(GradientSums, BucketsLieInMemoryThatRanksOfOneHostShare) {
  on_ranks(2, kDefaults, [](Rank& rank) {
    rank.step(1 + rank.number);
    expect_gradients(rank.parameters, 3);
    EXPECT_TRUE(in_shared_memory(rank.parameters[0].grad().const_data_ptr()));
    EXPECT_EQ(rank.group.transport(), comm::Transport::shm);
  });
}

#endif

// A rank on an accelerator copies into memory of its own; the others are not to wait for it.
TEST(GradientSums, RanksMayDifferInWhereTheirGradientsLive) {
  testing::run_ranks(2, [](int number, comm::Group group) {
    auto options = kDefaults;
    options.home = number == 0 ? GradientHome::bucket : GradientHome::tensor;
    Rank rank(number, group, options);
    rank.step(1 + number);
    expect_gradients(rank.parameters, 3);
  });
}

// A gradient may outlive the model and its group.
TEST(GradientSums, GradientsKeepTheirMemoryAlive) {
  std::vector<std::vector<torch::Tensor>> kept(2);
  on_ranks(2, kDefaults, [&](Rank& rank) {
    kept[rank.number] = rank.parameters;
    rank.step(2);
  });
  for (const auto& parameters : kept) expect_gradients(parameters, 4);
}

}  // namespace
}  // namespace bimetal::parallel
