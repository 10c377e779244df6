#pragma once
// The reference convolutional network.

#include "bimetal/models/classifier.h"
#include "bimetal/models/registry.h"

namespace bimetal::models {

inline constexpr std::int64_t kCnnHidden = 128;

/// conv1 (32 channels) and conv2 (64), 3×3, padded so that they keep the size, each with ReLU and
/// 2×2 max-pool; then fc1 (`hidden`, ReLU) and fc2 (classes). Height and width ≥ 4.
class Cnn final : public Classifier {
 public:
  explicit Cnn(ImageShape shape, std::int64_t hidden = kCnnHidden);
};

}  // namespace bimetal::models
