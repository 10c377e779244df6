#include <gtest/gtest.h>
#include <torch/csrc/api/include/torch/types.h>

#include <memory>
#include <string>
#include <vector>

#include "bimetal/base/error.h"
#include "bimetal/task/task.h"
#include "bimetal/train/compute.h"

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

}  // namespace
}  // namespace bimetal::train
