#include "bimetal/train/measure/allocation_watch.h"

#include <c10/core/Allocator.h>

#include <algorithm>
#include <mutex>

namespace bimetal::train {

class AllocationWatch::Counter final : public c10::MemoryReportingInfoBase {
 public:
  explicit Counter(const c10::Device& device) : type_(device.type()) {}

  void reportMemoryUsage(void* /*ptr*/, std::int64_t size, std::size_t /*allocated*/,
                         std::size_t /*reserved*/, c10::Device device) override {
    if (device.type() != type_) return;
    const std::lock_guard lock(mutex_);
    now_ += size;
    peak_ = std::max(peak_, now_);
  }
  bool memoryProfilingEnabled() const override { return true; }

  std::int64_t now() {
    const std::lock_guard lock(mutex_);
    return now_;
  }
  std::int64_t take_peak() {
    const std::lock_guard lock(mutex_);
    return std::exchange(peak_, now_);
  }

 private:
  const c10::DeviceType type_;
  std::mutex mutex_;
  std::int64_t now_ = 0, peak_ = 0;
};

AllocationWatch::AllocationWatch(const c10::Device& device)
    : counter_(std::make_shared<Counter>(device)),
      guard_(c10::DebugInfoKind::PROFILER_STATE, counter_) {}

std::int64_t AllocationWatch::now() const {
  return counter_->now();
}

std::int64_t AllocationWatch::take_peak() {
  return counter_->take_peak();
}

}  // namespace bimetal::train
