#pragma once
// Builds the next batch on a thread of its own while the device computes.

#include <functional>
#include <memory>

#include "bimetal/data/dataset.h"

namespace bimetal::data {

/// One batch ahead. request() starts building, take() waits for it; an error on the thread is
/// rethrown by take(). Not thread-safe itself: one owner.
class Prefetcher {
 public:
  Prefetcher(const ImageDataset& dataset, torch::Dtype dtype, torch::Device device);
  ~Prefetcher();
  Prefetcher(const Prefetcher&) = delete;
  Prefetcher& operator=(const Prefetcher&) = delete;

  void request(torch::Tensor indices);
  /// The batch on the device. Error(InvalidArgument) if nothing was requested.
  Batch take();
  /// Forgets a requested batch (the shares changed).
  void discard();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace bimetal::data
