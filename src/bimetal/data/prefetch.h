#pragma once
// Builds the next batch on a thread of its own while the device computes.

#include <memory>

#include "bimetal/task/dataset.h"
#include "bimetal/task/draws.h"

namespace bimetal::data {

/// One batch ahead: request() starts building, take() waits for it. Not thread-safe itself: one
/// owner. Building is computation alone, so that no wait here can last longer than its work.
class Prefetcher {
 public:
  Prefetcher(std::shared_ptr<const task::Dataset> dataset, torch::Device device);
  ~Prefetcher();
  Prefetcher(const Prefetcher&) = delete;
  Prefetcher& operator=(const Prefetcher&) = delete;

  /// A batch of the samples of `draws`, built in their scope. Error(InvalidArgument) while an
  /// earlier request is neither taken nor discarded.
  void request(task::Draws draws);

  /// The requested batch, on the device. Rethrows what went wrong while building it; after that
  /// the next request() works. Error(InvalidArgument) if nothing was requested.
  task::Values take();

  /// Forgets a request, if there is one (the shares changed).
  void discard();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace bimetal::data
