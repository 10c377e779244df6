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

}  // namespace bimetal::models
