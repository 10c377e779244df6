#pragma once
// The reference multi-layer perceptron.

#include "bimetal/models/classifier.h"
#include "bimetal/models/registry.h"

namespace bimetal::models {

inline constexpr std::int64_t kMlpHidden = 256;

/// fc1 and fc2 (`hidden` each, ReLU), then fc3 (classes), on the flattened image.
class Mlp final : public Classifier {
 public:
  explicit Mlp(ImageShape shape, std::int64_t hidden = kMlpHidden);
};

}  // namespace bimetal::models
