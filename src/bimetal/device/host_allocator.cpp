#include "bimetal/device/host_allocator.h"

#include <cstdlib>  // defines __GLIBC__ where it applies

#ifdef __GLIBC__
#include <malloc.h>
#endif

namespace bimetal::device {

#ifdef __GLIBC__

void keep_freed_tensors() {
  // Larger ones are rare and may go back; mallopt takes an int.
  constexpr int kOneGiB = 1 << 30;
  // Older glibc refuses a threshold beyond 32 MiB; then nothing at all is mapped on its own.
  if (mallopt(M_MMAP_THRESHOLD, kOneGiB) == 0) mallopt(M_MMAP_MAX, 0);
  mallopt(M_TRIM_THRESHOLD, -1);  // never shrink the heap
}

void return_freed_tensors() {
  constexpr int kMostMapped = 1 << 16;  // as without any call
  mallopt(M_MMAP_MAX, kMostMapped);
  mallopt(M_MMAP_THRESHOLD, 1 << 20);
  mallopt(M_TRIM_THRESHOLD, 1 << 20);
}

void give_back_freed_memory() {
  malloc_trim(0);
}

#else

void give_back_freed_memory() {}
void keep_freed_tensors() {}
void return_freed_tensors() {}

#endif

}  // namespace bimetal::device
