#include <gtest/gtest.h>
#include <torch/csrc/api/include/torch/nn/module.h>
#include <torch/csrc/api/include/torch/types.h>
#include <torch/csrc/api/include/torch/utils.h>

#include <array>
#include <map>
#include <string>
#include <vector>

#include "bimetal/models/registry.h"

namespace bimetal::models {
namespace {

constexpr ImageShape photographs{.channels = 3, .height = 224, .width = 224, .classes = 1000};

std::map<std::string, torch::Tensor> tensors_of(const torch::nn::Module& module) {
  std::map<std::string, torch::Tensor> tensors;
  for (const auto& item : module.named_parameters()) tensors[item.key()] = item.value();
  return tensors;
}

std::int64_t size_of(const std::string& name) {
  std::int64_t size = 0;
  for (const auto& parameter : make_model(name, photographs)->parameters()) {
    size += parameter.numel();
  }
  return size;
}

// The sizes that torchvision documents for its weights.
TEST(ResNet, HasAsManyParametersAsPublished) {
  EXPECT_EQ(size_of("resnet18"), 11'689'512);
  EXPECT_EQ(size_of("resnet34"), 21'797'672);
  EXPECT_EQ(size_of("resnet50"), 25'557'032);
}

TEST(ResNet, ParametersAreCalledAsInTorchvision) {
  using Sizes = std::vector<std::int64_t>;
  auto tensors = tensors_of(*make_model("resnet50", photographs));
  EXPECT_EQ(tensors.size(), 161);
  EXPECT_EQ(tensors.at("conv1.weight").sizes(), (Sizes{64, 3, 7, 7}));
  EXPECT_EQ(tensors.at("bn1.bias").sizes(), (Sizes{64}));
  EXPECT_EQ(tensors.at("layer1.0.downsample.0.weight").sizes(), (Sizes{256, 64, 1, 1}));
  EXPECT_EQ(tensors.at("layer1.0.downsample.1.weight").sizes(), (Sizes{256}));
  EXPECT_EQ(tensors.at("layer3.5.conv2.weight").sizes(), (Sizes{256, 256, 3, 3}));
  EXPECT_EQ(tensors.at("layer4.2.bn3.weight").sizes(), (Sizes{2048}));
  EXPECT_EQ(tensors.at("fc.weight").sizes(), (Sizes{1000, 2048}));
  EXPECT_FALSE(tensors.contains("layer1.1.downsample.0.weight"));
  EXPECT_FALSE(tensors.contains("conv1.bias"));
}

TEST(ResNet, WithBatchNormItsBuffersAreCalledAsInTorchvision) {
  const auto model = make_model("resnet18", photographs, 0, 16)->units();
  std::map<std::string, torch::Tensor> buffers;
  for (const auto& buffer : model.named_buffers()) buffers[buffer.name] = buffer.tensor;
  EXPECT_EQ(buffers.size(), 40);
  EXPECT_EQ(buffers.at("bn1.running_mean").numel(), 64);
  EXPECT_EQ(buffers.at("layer2.0.downsample.1.running_var").numel(), 128);
  EXPECT_EQ(model.sample_group(), 16);
  EXPECT_EQ(model.named_parameters().size(), 62);
}

TEST(ResNet, EachBlockIsAUnit) {
  const auto model = make_model("resnet34", {})->units();
  ASSERT_EQ(model.units.size(), 2 + 3 + 4 + 6 + 3 + 1);
  EXPECT_EQ(model.units[2].name, "layer1.0");
  EXPECT_EQ(model.units[2].parameters[0].name, "layer1.0.conv1.weight");
  EXPECT_EQ(model.units.back().name, "fc");
}

// How far the first stage has made images smaller.
TEST(ResNet, TheStemGoesByTheImagesSize) {
  const torch::NoGradGuard no_grad;
  for (const auto& [size, at_first, at_last] :
       {std::array{32, 32, 4}, std::array{64, 64, 8}, std::array{96, 24, 3}}) {
    const auto model =
        make_model("resnet18", {.channels = 3, .height = size, .width = size}, 32)->units();
    task::Values x = {torch::rand({1, 3, size, size})};
    std::map<std::string, std::int64_t> sizes;
    for (const auto& unit : model.units) {
      x = unit.forward(x);
      if (x.front().dim() == 4) sizes[unit.name] = x.front().size(2);
    }
    EXPECT_EQ(sizes.at("layer1.0"), at_first) << size;
    EXPECT_EQ(sizes.at("layer4.1"), at_last) << size;
  }
}

torch::Tensor normalised(const std::map<std::string, torch::Tensor>& all, const std::string& name,
                         const torch::Tensor& x) {
  const auto groups = x.view({x.size(0), kNormGroups, -1});
  const auto mean = groups.mean(2, true);
  const auto variance = (groups - mean).square().mean(2, true);
  const auto plain = ((groups - mean) / (variance + 1e-5).sqrt()).view(x.sizes());
  return plain * all.at(name + ".weight").view({1, -1, 1, 1}) +
         all.at(name + ".bias").view({1, -1, 1, 1});
}

// Against the paper's formula, written out.
TEST(ResidualBlock, ComputesWhatThePaperSays) {
  torch::manual_seed(2);
  const auto options = torch::kFloat64;
  ResidualBlock basic(BlockKind::Basic, 32, 64, 2), bottleneck(BlockKind::Bottleneck, 128, 32, 1);
  for (auto block : {ResidualBlock(basic), ResidualBlock(bottleneck)}) {
    block->to(options);
    for (auto& parameter : block->parameters()) {
      const torch::NoGradGuard no_grad;
      parameter.add_(torch::randn_like(parameter), 0.1);  // norms begin at 1 or 0
    }
  }
  auto all = tensors_of(*basic);
  const auto x = torch::randn({3, 32, 9, 9}, options);
  auto y = normalised(all, "bn1", torch::conv2d(x, all.at("conv1.weight"), {}, 2, 1)).relu();
  y = normalised(all, "bn2", torch::conv2d(y, all.at("conv2.weight"), {}, 1, 1));
  auto shortcut =
      normalised(all, "downsample.1", torch::conv2d(x, all.at("downsample.0.weight"), {}, 2));
  EXPECT_TRUE(basic->forward(x).allclose((y + shortcut).relu(), 1e-12, 1e-12));

  all = tensors_of(*bottleneck);
  const auto wide = torch::randn({3, 128, 5, 5}, options);
  y = normalised(all, "bn1", torch::conv2d(wide, all.at("conv1.weight"))).relu();
  y = normalised(all, "bn2", torch::conv2d(y, all.at("conv2.weight"), {}, 1, 1)).relu();
  y = normalised(all, "bn3", torch::conv2d(y, all.at("conv3.weight")));
  EXPECT_TRUE(bottleneck->forward(wide).allclose((y + wide).relu(), 1e-12, 1e-12));
}

}  // namespace
}  // namespace bimetal::models
