#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/api/include/torch/types.h>

#include <memory>
#include <string>
#include <vector>

#include "bimetal/base/error.h"
#include "bimetal/task/task.h"
#include "bimetal/train/share/compute.h"
#include "support/thread_ranks.h"

namespace bimetal::train {
namespace {

TEST(Recomputation, IsOfSoManyUnitsAtOnce) {
  EXPECT_EQ(recomputed_at_once("none", 14), 0u);
  EXPECT_EQ(recomputed_at_once("auto", 14), 0u);
  EXPECT_EQ(recomputed_at_once("all", 14), 1u);
  EXPECT_EQ(recomputed_at_once("sqrt", 14), 4u);
  EXPECT_EQ(recomputed_at_once("sqrt", 1), 1u);
  EXPECT_EQ(recomputed_at_once("5", 14), 5u);
  for (const char* wrong : {"", "0", "-1", "2.5", "3 units", "every"}) {
    EXPECT_THROW(recomputed_at_once(wrong, 14), Error) << wrong;
  }
}

constexpr std::int64_t width = 16;

/// Three units that fill the memory of their device with the activations of one of them for 64
/// samples, or of all for 21, and then fail as libtorch's allocator does.
class SmallDevice final : public task::Task {
 public:
  task::Model make_model() const override {
    task::Model model;
    for (int i = 0; i < 3; ++i) {
      const auto weight = torch::ones({width, width}, torch::requires_grad()) / width;
      const auto leaf = weight.detach().requires_grad_();
      model.units.push_back({.name = "unit" + std::to_string(i),
                             .parameters = {{std::to_string(i) + ".weight", leaf}},
                             .forward = [this, leaf](const task::Values& inputs) -> task::Values {
                               const auto hidden = torch::sigmoid(inputs.front().matmul(leaf));
                               hold(hidden);
                               return {hidden.sin()};
                             }});
    }
    return model;
  }

  std::shared_ptr<const task::Dataset> training() const override { return nullptr; }
  torch::Tensor loss_sum(const task::Values& outputs, const task::Values&) const override {
    return outputs.front().sum();
  }

 private:
  void hold(const torch::Tensor& hidden) const {
    held_.push_back({hidden.storage().getWeakStorageImpl(), hidden.size(0)});
    std::int64_t samples = 0;
    for (const auto& [storage, of_it] : held_) samples += storage.expired() ? 0 : of_it;
    if (samples > 64) torch::empty({std::int64_t{1} << 50});
  }

  struct Held {
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;
    std::int64_t samples;
  };
  mutable std::vector<Held> held_;
};

struct Device {
  explicit Device(const std::string& recompute)
      : compute(task, task.make_model(), torch::kCPU, {.micro_batch = 64, .recompute = recompute}) {
  }

  progress::Fit step(std::int64_t samples) {
    return compute
        .try_run(
            samples,
            [&] {
              return task::Values{torch::ones({samples, width}), torch::zeros({samples})};
            },
            [](const torch::Tensor& loss, bool) { loss.backward(); })
        .fit;
  }

  SmallDevice task;
  Compute compute;
};

TEST(Compute, RecomputesBeforeItTakesSmallerPieces) {
  Device device("auto");
  EXPECT_EQ(device.step(64), progress::Fit::try_recomputing);
  EXPECT_EQ(device.step(64), progress::Fit::fits);
  EXPECT_EQ(device.step(64), progress::Fit::fits) << "and it remembers";
}

TEST(Compute, TakesSmallerPiecesWhereNothingIsRecomputed) {
  Device device("none");
  EXPECT_EQ(device.step(64), progress::Fit::try_smaller_pieces);
  EXPECT_EQ(device.step(64), progress::Fit::try_smaller_pieces);
  EXPECT_EQ(device.step(64), progress::Fit::fits);
}

TEST(Compute, RecomputesAsItIsToldTo) {
  EXPECT_EQ(Device("all").step(64), progress::Fit::fits);
  EXPECT_EQ(Device("2").step(64), progress::Fit::try_smaller_pieces) << "two at once are too many";
}

TEST(Compute, RefusesAnUnknownRecomputation) {
  EXPECT_THROW(Device("some"), Error);
}

using ::testing::ElementsAre;

std::vector<std::int64_t> sizes_of_pieces(const MicroBatch& micro_batch, std::int64_t samples,
                                          std::int64_t least = 0) {
  std::vector<std::int64_t> sizes, labels;
  int lasts = 0;
  const task::Values batch{torch::zeros({samples, 1, 2, 2}), torch::arange(samples)};
  micro_batch.for_each(batch, least, [&](const task::Values& piece, bool last) {
    EXPECT_EQ(piece[0].size(0), piece[1].size(0));
    sizes.push_back(piece[1].size(0));
    for (const auto& label : piece[1].unbind()) labels.push_back(label.item<std::int64_t>());
    lasts += last ? 1 : 0;
  });
  EXPECT_EQ(lasts, samples > 0 ? 1 : 0);
  std::vector<std::int64_t> all(static_cast<std::size_t>(samples));
  std::iota(all.begin(), all.end(), 0);
  EXPECT_EQ(labels, all) << "each sample once, in order";
  return sizes;
}

TEST(MicroBatch, PiecesDifferByOneAtMost) {
  const MicroBatch four(4, torch::kCPU);
  EXPECT_THAT(sizes_of_pieces(four, 4), ElementsAre(4));
  EXPECT_THAT(sizes_of_pieces(four, 5), ElementsAre(2, 3));
  EXPECT_THAT(sizes_of_pieces(four, 10), ElementsAre(3, 3, 4));
  EXPECT_THAT(sizes_of_pieces(four, 0), ElementsAre());
}

TEST(MicroBatch, MorePiecesMayBeAskedForThanFit) {
  const MicroBatch four(4, torch::kCPU);
  EXPECT_THAT(sizes_of_pieces(four, 6, 3), ElementsAre(2, 2, 2));
  EXPECT_THAT(sizes_of_pieces(four, 10, 2), ElementsAre(3, 3, 4)) << "never larger ones";
  EXPECT_THAT(sizes_of_pieces(four, 2, 3), ElementsAre(1, 1)) << "nor empty ones";
  EXPECT_EQ(sizes_of_pieces({10, torch::kCPU, 1, 4}, 8, 5), (std::vector<std::int64_t>{4, 4}));
}

TEST(MicroBatch, GroupsStayTogether) {
  EXPECT_EQ(sizes_of_pieces({10, torch::kCPU, 1, 4}, 30), (std::vector<std::int64_t>{8, 8, 8, 6}));
  EXPECT_EQ(sizes_of_pieces({3, torch::kCPU, 1, 4}, 9), (std::vector<std::int64_t>{4, 4, 1}));
  MicroBatch large(0, torch::kCPU, 1, 24);
  EXPECT_EQ(large.limit(), 48);
  EXPECT_TRUE(large.halve(1000));
  EXPECT_EQ(large.limit(), 24);
  EXPECT_FALSE(large.halve(1000));
}

TEST(MicroBatch, DefaultSuitsTheDevice) {
  EXPECT_EQ(MicroBatch(0, torch::kCPU).limit(), MicroBatch::kCpuDefault);
  EXPECT_EQ(MicroBatch(0, torch::kCUDA).pieces(100'000), 1);
  EXPECT_EQ(MicroBatch(100, torch::kCUDA).pieces(1000), 10);
}

TEST(MicroBatch, LongSequencesAreFewAtOnce) {
  EXPECT_EQ(MicroBatch(0, torch::kCPU, 4).limit(), MicroBatch::kCpuDefault);
  EXPECT_EQ(MicroBatch(0, torch::kCPU, 256).limit(), 4);
  EXPECT_EQ(MicroBatch(0, torch::kCPU, 4096).limit(), 1);
  MicroBatch three(3, torch::kCPU, 1024);
  EXPECT_EQ(three.limit(), 3) << "as configured";
  EXPECT_TRUE(three.halve(3));
  EXPECT_EQ(three.limit(), 1);
  EXPECT_FALSE(three.halve(3));
}

TEST(MicroBatch, HalvesUntilThereIsNoUseInIt) {
  MicroBatch micro_batch(0, torch::kCUDA);
  EXPECT_TRUE(micro_batch.halve(100));
  EXPECT_EQ(micro_batch.limit(), 50);
  EXPECT_TRUE(micro_batch.halve(100));
  EXPECT_TRUE(micro_batch.halve(100));
  EXPECT_TRUE(micro_batch.halve(100));
  EXPECT_EQ(micro_batch.limit(), MicroBatch::kSmallest);
  EXPECT_FALSE(micro_batch.halve(100));
  EXPECT_FALSE(MicroBatch(64, torch::kCPU).halve(MicroBatch::kSmallest));
}

TEST(MicroBatch, RanksThatComputeTogetherTakeTheLeastOfTheirLimits) {
  bimetal::testing::run_ranks(2, [](int rank, comm::Group group) {
    const MicroBatch own(0, rank == 0 ? torch::kCUDA : torch::kCPU);
    EXPECT_EQ(least_limit(group, own, Deadline::after(std::chrono::seconds(30))),
              MicroBatch::kCpuDefault);
  });
}

}  // namespace
}  // namespace bimetal::train
