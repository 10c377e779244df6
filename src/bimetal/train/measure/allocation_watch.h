#pragma once
// Counts what libtorch allocates on a device while something runs.

#include <c10/core/Device.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <cstdint>
#include <memory>

namespace bimetal::train {

/// Counts from its construction to its destruction, for this thread and the autograd threads that
/// work for it. Tensors that were there before must outlive it: libtorch warns of memory that is
/// freed without having been counted. Use from one thread.
class AllocationWatch {
 public:
  explicit AllocationWatch(const c10::Device& device);

  /// Bytes allocated and not freed since the construction.
  std::int64_t now() const;
  /// The most since the last call, or the construction.
  std::int64_t take_peak();

 private:
  class Counter;
  std::shared_ptr<Counter> counter_;
  c10::DebugInfoGuard guard_;
};

}  // namespace bimetal::train
