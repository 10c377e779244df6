#pragma once
// Softmax regression: the smallest model there is, for tests and for measuring overhead.

#include "bimetal/models/classifier.h"
#include "bimetal/models/registry.h"

namespace bimetal::models {

/// One layer, fc, from the flattened image to the logits.
class Linear final : public Classifier {
 public:
  explicit Linear(ImageShape shape);
};

// The reference multi-layer perceptron.

inline constexpr std::int64_t kMlpHidden = 256;

/// fc1 and fc2 (`hidden` each, ReLU), then fc3 (classes), on the flattened image.
class Mlp final : public Classifier {
 public:
  explicit Mlp(ImageShape shape, std::int64_t hidden = kMlpHidden);
};

// The reference convolutional network.

inline constexpr std::int64_t kCnnHidden = 128;

/// conv1 (32 channels) and conv2 (64), 3×3, padded so that they keep the size, each with ReLU and
/// 2×2 max-pool; then fc1 (`hidden`, ReLU) and fc2 (classes). Height and width ≥ 4.
class Cnn final : public Classifier {
 public:
  explicit Cnn(ImageShape shape, std::int64_t hidden = kCnnHidden);
};

}  // namespace bimetal::models
