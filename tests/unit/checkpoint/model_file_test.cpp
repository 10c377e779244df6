#include "bimetal/checkpoint/model_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/api/include/torch/optim.h>
#include <torch/csrc/api/include/torch/types.h>

#include "bimetal/base/error.h"
#include "support/temporary_folder.h"
#include "unit/checkpoint/small_net.h"

namespace bimetal::checkpoint {
namespace {

using ::testing::HasSubstr;

class ModelFile : public ::testing::Test {
 protected:
  /// The message with which `net` refuses a file of these tensors, unchanged by it.
  std::string refusal(SmallNet& net, const TensorMap& tensors) {
    write_safetensors(file_, tensors);
    const auto before = copy_of(net);
    std::string message;
    try {
      load_model(net, file_);
      ADD_FAILURE() << "accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::InvalidArgument);
      message = error.what();
    }
    expect_equal(copy_of(net), before);
    return message;
  }

  const test::TemporaryFolder folder_;
  const std::filesystem::path file_ = folder_ / "model.safetensors";
};

TEST_F(ModelFile, KeepsParametersAndBuffers) {
  SmallNet saved, loaded;
  torch::optim::SGD sgd(saved.parameters(), 0.1);
  run_steps(saved, sgd, 1, 2);  // moves the batch norm's buffers, too
  save_model(saved, file_);
  load_model(loaded, file_);
  expect_equal(copy_of(loaded), copy_of(saved));
  EXPECT_EQ(loaded.norm->num_batches_tracked.item<int>(), 2);
}

TEST_F(ModelFile, UsesTheNamesOfLibtorch) {
  save_model(SmallNet(), file_);
  std::set<std::string> names;
  for (const auto& [name, tensor] : read_safetensors(file_)) names.insert(name);
  EXPECT_EQ(names, (std::set<std::string>{"conv.weight", "conv.bias", "norm.weight", "norm.bias",
                                          "norm.running_mean", "norm.running_var",
                                          "norm.num_batches_tracked", "head.weight", "head.bias"}));
}

TEST_F(ModelFile, LeavesGradientsAndIdentityAlone) {
  SmallNet net;
  save_model(net, file_);
  const auto* weight = net.head->weight.unsafeGetTensorImpl();
  load_model(net, file_);
  EXPECT_EQ(net.head->weight.unsafeGetTensorImpl(), weight);
  EXPECT_TRUE(net.head->weight.requires_grad());
  EXPECT_TRUE(net.head->weight.is_leaf());
}

TEST_F(ModelFile, NamesTheFirstDifference) {
  SmallNet net;
  auto fewer = copy_of(net), more = fewer, other_shape = fewer, other_type = fewer;
  fewer.erase("head.bias");
  more["tail.bias"] = torch::ones({1});
  other_shape = copy_of(SmallNet(5));
  other_type["head.bias"] = other_type["head.bias"].to(torch::kFloat64);
  EXPECT_THAT(refusal(net, fewer), HasSubstr("holds another model: it has no 'head.bias'"));
  EXPECT_THAT(refusal(net, more), HasSubstr("'tail.bias' is unknown here"));
  EXPECT_THAT(refusal(net, other_shape), HasSubstr("'conv.bias' is [5] Float there and [4] Float"));
  EXPECT_THAT(refusal(net, other_type), HasSubstr("'head.bias' is [2] Double there and [2] Float"));
}

}  // namespace
}  // namespace bimetal::checkpoint
