// The part of shared memory that is the same on every system: the proof that two processes see the
// same bytes.
#include "bimetal/net/shm/shared_memory.h"

#include <cstring>

#include "bimetal/base/error.h"
#include "bimetal/net/noise.h"

namespace bimetal::net {

void SharedMemory::write_nonce() {
  ensure_sodium();
  randombytes_buf(address_.nonce.data(), address_.nonce.size());
  std::memcpy(bytes_.data(), address_.nonce.data(), address_.nonce.size());
}

void SharedMemory::accept(const SegmentAddress& address) {
  if (sodium_memcmp(bytes_.data(), address.nonce.data(), address.nonce.size()) != 0) {
    throw Error(ErrorCode::Unsupported, "the shared memory found is somebody else's");
  }
  address_ = address;
}

}  // namespace bimetal::net
