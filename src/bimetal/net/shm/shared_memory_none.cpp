// Systems for which no shared memory has been written yet: groups use their connections there.
#include "bimetal/base/error.h"
#include "bimetal/net/shm/shared_memory.h"

namespace bimetal::net {
namespace {

[[noreturn]] void refuse() {
  throw Error(ErrorCode::Unsupported, "this build has no shared memory between processes");
}

}  // namespace

bool SharedMemory::supported() noexcept {
  return false;
}

SharedMemory SharedMemory::create(std::size_t bytes) {
  refuse();
}

SharedMemory SharedMemory::open(const SegmentAddress& address, std::size_t bytes) {
  refuse();
}

std::uint64_t SharedMemory::borrowed_bytes() {
  return 0;
}

void SharedMemory::forget_name() noexcept {}

SharedMemory::~SharedMemory() = default;

}  // namespace bimetal::net
