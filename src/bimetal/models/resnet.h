#pragma once
// Residual networks of 18, 34 and 50 layers.

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

#include "bimetal/models/classifier.h"
#include "bimetal/models/registry.h"
#include "bimetal/models/residual_block.h"

namespace bimetal::models {

inline constexpr std::int64_t kResNetWidth = 64;
inline constexpr std::int64_t kLeastResNetSize = 8;

/// How many blocks a stage has, and of which kind.
struct ResNetDepth {
  BlockKind kind = BlockKind::Basic;
  std::array<std::int64_t, 4> blocks = {};
};

/// Of "resnet18", "resnet34", "resnet50"; nothing for other names.
std::optional<ResNetDepth> resnet_depth(std::string_view name);

/// He et al. 2016, table 1: conv1, bn1, four stages layer1 … layer4 of residual blocks of which
/// each but the first halves the size and doubles the channels, the mean over all pixels, fc. Each
/// block is a unit; parameters have the names and shapes of torchvision's. The norm is by groups of channels, without running statistics, or over groups of `samples` of
/// them (residual_block.h). Images of up to 64 pixels a side are not
/// made smaller before the first stage (section 4.2: a 3×3 conv1), larger ones by four (a 7×7 of
/// stride 2, and 3×3 max-pool). Height and width ≥ kLeastResNetSize; `width` is the first stage's,
/// a multiple of kNormGroups.
class ResNet final : public Classifier {
 public:
  ResNet(const ResNetDepth& depth, ImageShape shape, std::int64_t width = kResNetWidth,
         std::int64_t samples = 0);
};

}  // namespace bimetal::models
