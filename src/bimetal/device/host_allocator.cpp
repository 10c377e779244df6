#include "bimetal/device/host_allocator.h"

#include <c10/core/CPUAllocator.h>
#include <pthread.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>  // defines __GLIBC__ where it applies
#include <mutex>

#include "bimetal/device/host.h"
#include "bimetal/device/page_heap.h"

#ifdef __GLIBC__
#include <malloc.h>
#endif

namespace bimetal::device {
namespace {

/// Below this size, malloc's losses between blocks are small beside the blocks.
constexpr std::size_t kLarge = 256 << 10;
constexpr std::size_t kLeastRoom = std::size_t{64} << 30;

/// Never destroyed: tensors in static objects outlive everything.
PageHeap& blocks() {
  // Holes between blocks cost addresses alone: there are more than enough on 64 bits.
  static auto* blocks =
      new PageHeap(std::max<std::size_t>(kLeastRoom, 4 * host_memory().total_bytes));
  return *blocks;
}

/// Large tensors from PageHeap, all others from the allocator that was there before.
class ReusingAllocator final : public c10::Allocator {
 public:
  explicit ReusingAllocator(c10::Allocator& before) : before_(before) { instance_ = this; }

  c10::DataPtr allocate(std::size_t bytes) override {
    void* data = bytes < kLarge ? nullptr : blocks().take(bytes);
    if (data) {
      c10::profiledCPUMemoryReporter().New(data, bytes);
    } else {
      data = before_.raw_allocate(bytes);  // throws libtorch's own error where there is no memory
    }
    return {data, data, &free, torch_cpu()};
  }

  c10::DeleterFnPtr raw_deleter() const override { return &free; }

  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }

 private:
  static c10::Device torch_cpu() { return {c10::DeviceType::CPU}; }

  static void free(void* data) {
    if (!data) return;
    // A whole page's start is all that can be one of the blocks: small tensors need not ask.
    constexpr std::uintptr_t kSmallestPage = 4096;
    if (reinterpret_cast<std::uintptr_t>(data) % kSmallestPage == 0 && blocks().owns(data)) {
      c10::profiledCPUMemoryReporter().Delete(data);
      return blocks().give_back(data);
    }
    instance_->before_.raw_deallocate(data);
  }

  static inline ReusingAllocator* instance_ = nullptr;
  c10::Allocator& before_;
};

/// A child that is forked while another thread is in there would wait for that thread forever.
void hold_blocks_during_fork() {
  pthread_atfork([] { blocks().lock(); }, [] { blocks().unlock(); }, [] { blocks().unlock(); });
}

}  // namespace

void return_large_blocks() {
#ifdef __GLIBC__
  mallopt(M_MMAP_THRESHOLD, 1 << 20);
  mallopt(M_TRIM_THRESHOLD, 1 << 20);
#endif
}

void reuse_freed_tensors() {
  static std::once_flag once;
  std::call_once(once, [] {
    return_large_blocks();
    hold_blocks_during_fork();
    // libtorch asks for it by type from now on, and has it as long as the process lives.
    c10::SetCPUAllocator(new ReusingAllocator(*c10::GetCPUAllocator()));
  });
}

void keep_at_most(std::size_t spare) {
  blocks().limit_spare(spare);
}

void give_back_freed_memory() {
  blocks().drop();
#ifdef __GLIBC__
  malloc_trim(0);
#endif
}

}  // namespace bimetal::device
