// A stage that has no memory for what another one sends it, or for shortening what it sends, gives
// the step up, as one that cannot compute does: nobody waits in vain, and the next step is whole.

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <gtest/gtest.h>
#include <torch/csrc/api/include/torch/types.h>
#include <torch/csrc/api/include/torch/utils.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <limits>
#include <memory>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "bimetal/base/deadline.h"
#include "bimetal/base/error.h"
#include "bimetal/comm/compress/compression.h"
#include "bimetal/parallel/data/replicated_model.h"
#include "bimetal/parallel/pipeline/loop_stage.h"
#include "bimetal/parallel/pipeline/runner.h"
#include "bimetal/parallel/pipeline/stage_model.h"
#include "support/thread_ranks.h"
#include "support/vendor_stand_in.h"

namespace bimetal::parallel::pipeline {
namespace {

using namespace std::chrono_literals;

constexpr std::int64_t kSamples = 4, kMicroBatches = 2, kWidth = 37;
constexpr std::size_t kMessage = kSamples * kWidth * sizeof(double);
constexpr std::size_t kFloats = kSamples * kWidth * sizeof(float);  ///< of what is shortened
constexpr int kAlways = std::numeric_limits<int>::max();

std::atomic<bool> scarce{false};
std::atomic<std::size_t> refused{kMessage};
/// How often this thread gets no block of `refused` bytes while memory is scarce: threads that are
/// of no stage, which receive while stages compute, never get one.
thread_local int refusals = kAlways;

/// libtorch's memory on the CPU, of which there is too little while `scarce`.
class ScarceMemory final : public c10::Allocator {
 public:
  ScarceMemory() { c10::SetCPUAllocator(this, kPriority); }
  ~ScarceMemory() override { c10::SetCPUAllocator(&before_, kPriority); }

  c10::DataPtr allocate(std::size_t bytes) override {
    if (scarce && bytes == refused && refusals > 0) {
      if (refusals != kAlways) --refusals;
      throw std::bad_alloc();
    }
    return before_.allocate(bytes);
  }
  c10::DeleterFnPtr raw_deleter() const override { return before_.raw_deleter(); }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }

 private:
  static constexpr std::uint8_t kPriority = 100;
  c10::Allocator& before_ = *c10::GetCPUAllocator();
};

torch::Tensor weight_of(int stage) {
  torch::manual_seed(5 + stage);
  return torch::randn({kWidth, kWidth}, torch::kFloat64).requires_grad_();
}

torch::Tensor samples_of(int micro_batch) {
  torch::manual_seed(50 + micro_batch);
  return torch::randn({kSamples, kWidth}, torch::kFloat64);
}

torch::Tensor loss_of(const torch::Tensor& outputs) {
  return outputs.square().sum();
}

StageWork work_of(const torch::Tensor& weight) {
  StageWork work;
  work.inputs = [](int micro_batch) { return task::Values{samples_of(micro_batch)}; };
  work.forward = [weight](int /*chunk*/, int /*micro_batch*/, const task::Values& inputs) {
    return task::Values{inputs.front().matmul(weight).tanh()};
  };
  work.loss_sum = [](int /*micro_batch*/, const task::Values& outputs) {
    return loss_of(outputs.front());
  };
  work.survivable = [](const std::exception_ptr& error) {
    try {
      std::rethrow_exception(error);
    } catch (const std::bad_alloc&) {
      return true;
    } catch (...) {
      return false;
    }
  };
  return work;
}

/// Which stage has too little memory, and for what: receiving, by a vendor library or without, or
/// shortening what it sends.
struct Row {
  int narrow;
  schedule::Kind kind;
  bool shortens = false;
  bool by_cards = false;
};

/// `narrow`: this stage has no memory for the first message that it waits for, until it has given
/// up, and none for receiving ahead; or never any for what it sends.
RunnerOptions options_of(const Row& row, bool narrow) {
  RunnerOptions options;
  options.kind = row.kind;
  if (row.shortens) {
    options.compression = {comm::Scheme::float16, comm::CompressedLinks::all};
  }
  options.timeout = 20s;
  options.around = [](const schedule::Action&, const std::function<void()>& compute) {
    const auto outside = std::exchange(refusals, 0);
    compute();
    refusals = outside;
  };
  options.around_wait = [first = narrow && !row.shortens ? 1 : 0](
                            const schedule::Action&, const std::function<void()>& wait) mutable {
    const auto outside = std::exchange(refusals, std::exchange(first, 0));
    wait();
    refusals = outside;
  };
  return options;
}

class ReceiveMemory : public ::testing::TestWithParam<Row> {};

TEST_P(ReceiveMemory, AStageThatHasNoneGivesUpAndTheNextStepIsWhole) {
  const auto row = GetParam();
  ScarceMemory memory;
  refused = row.shortens ? kFloats : kMessage;
  std::vector<torch::Tensor> weights = {weight_of(0), weight_of(1)};
  testing::run_ranks(2, [&](int rank, comm::Group group) {
    const auto mesh = std::make_shared<const Mesh>(std::move(group), MeshShape{2, 1, 1});
    const auto& weight = weights[static_cast<std::size_t>(rank)];
    auto world = mesh->world();
    task::ModelState own;
    own.parameters.push_back({"weight", weight});
    const auto store = std::make_shared<ReplicatedModel>(own, mesh->replicas());
    Sync sync(store, {std::make_shared<StageSums>(mesh, store, std::vector<Tied>(), 20s)});
    auto options = options_of(row, rank == row.narrow);
    if (row.by_cards) options.vendor = testing::library_of(rank);
    Runner runner(*mesh, options);
    for (const bool first : {true, false}) {
      world.barrier(Deadline::after(20s)).wait();
      scarce = first;
      refusals = first && rank == row.narrow ? kAlways : 0;
      world.barrier(Deadline::after(20s)).wait();
      sync.begin_step(kSamples * kMicroBatches);
      const std::vector<std::int64_t> samples(kMicroBatches, kSamples);
      const auto result =
          runner.run(schedule::Deal(mesh->widths(), samples), work_of(weight), *store);
      sync.sum_gradients();
      EXPECT_EQ(result.error != nullptr, first && rank == row.narrow);
      // Values that do not leave a stage are missing on those behind it.
      const bool concerned = row.shortens ? rank >= row.narrow : rank == row.narrow;
      EXPECT_EQ(result.incomplete, first && concerned);
    }
  });
  const std::vector<torch::Tensor> expected = {weight_of(0), weight_of(1)};
  for (int i = 0; i < kMicroBatches; ++i) {
    const auto hidden = samples_of(i).matmul(expected[0]).tanh();
    (loss_of(hidden.matmul(expected[1]).tanh()) / (kSamples * kMicroBatches)).backward();
  }
  for (std::size_t stage = 0; stage < 2; ++stage) {
    const auto& gradient = expected[stage].grad();
    const auto lost = row.shortens ? 0.05 * gradient.abs().max().item<double>() : 1e-12;
    EXPECT_TRUE(torch::allclose(weights[stage].grad(), gradient, 1e-12, lost));
  }
}

INSTANTIATE_TEST_SUITE_P(
    Rows, ReceiveMemory,
    ::testing::Values(Row{0, schedule::Kind::one_f_one_b}, Row{1, schedule::Kind::one_f_one_b},
                      Row{0, schedule::Kind::zero_bubble}, Row{1, schedule::Kind::gpipe},
                      Row{0, schedule::Kind::one_f_one_b, true},
                      Row{1, schedule::Kind::one_f_one_b, true},
                      Row{0, schedule::Kind::one_f_one_b, false, true},
                      Row{1, schedule::Kind::gpipe, false, true},
                      Row{1, schedule::Kind::zero_bubble, false, true}),
    [](const auto& info) {
      return "Stage" + std::to_string(info.param.narrow) + "By" + std::to_string(info.index);
    });

// A stage in somebody else's loop that cannot begin a batch tells the others.
TEST(LoopStage, ARankWithoutRoomForItsGradientsTellsTheOthers) {
  testing::run_ranks(2, [](int rank, comm::Group group) {
    const auto weight = torch::full({3, 3}, 0.5, torch::kFloat64).requires_grad_();
    task::ModelState own;
    own.parameters.push_back({"weight", weight});
    LoopStageOptions options;
    options.timeout = std::chrono::seconds(20);
    LoopStage stage(std::move(group), MeshShape{2, 1, 1}, own, {}, std::move(options));
    const auto forward = [&](int /*chunk*/, int /*micro_batch*/, const task::Values& inputs) {
      if (rank == 0) return task::Values{torch::ones({2, 3}, torch::kFloat64).matmul(weight)};
      return task::Values{inputs.front().matmul(weight).sum()};
    };
    const LoopBatch batch{.samples = {2}, .weight = 2, .digest = 7};
    EXPECT_TRUE(stage.train(batch, 1.0, forward).has_value());
    const auto before = weight.grad().clone();
    // A number that looks like petabytes of them, of which there cannot be a copy.
    const auto copyless = torch::zeros({1}, torch::kFloat64).expand({std::int64_t{1} << 50});
    if (rank == 1) weight.mutable_grad() = copyless;
    try {
      stage.train(batch, 1.0, forward);
      ADD_FAILURE() << "rank " << rank << " has learned from it";
    } catch (const Error& error) {
      EXPECT_EQ(rank, 0);
      EXPECT_EQ(error.code(), ErrorCode::Aborted) << error.what();
      EXPECT_EQ(error.rank(), 1);
    } catch (...) {
      EXPECT_EQ(rank, 1);
      EXPECT_TRUE(device::is_out_of_memory(std::current_exception()));
    }
    if (rank == 1) weight.mutable_grad() = before.clone();
    EXPECT_TRUE(torch::equal(weight.grad(), before)) << "none is lost";
    EXPECT_TRUE(stage.train(batch, 1.0, forward).has_value());
    EXPECT_TRUE(torch::allclose(weight.grad(), 2 * before, 1e-12, 1e-12));
  });
}

}  // namespace
}  // namespace bimetal::parallel::pipeline
