#include "bimetal/api/balanced_batches.h"

#include "bimetal/api/balanced_steps.h"

namespace bimetal {

BalancedBatches::Iterator BalancedBatches::begin() {
  steps_->advance();
  return Iterator(steps_.get());
}

Batch& BalancedBatches::Iterator::operator*() const {
  return steps_->batch();
}

BalancedBatches::Iterator& BalancedBatches::Iterator::operator++() {
  steps_->advance();
  return *this;
}

bool BalancedBatches::Iterator::operator==(std::default_sentinel_t) const {
  return steps_->finished();
}

}  // namespace bimetal
