#pragma once
// libsodium, initialised. Include this instead of <sodium.h>.

#include <sodium.h>

#include "bimetal/base/error.h"

namespace bimetal::net {

/// To be called before libsodium's first use; cheap and thread-safe.
inline void ensure_sodium() {
  static const bool ready = sodium_init() >= 0;
  if (!ready) throw Error(ErrorCode::System, "libsodium found no source of random numbers");
}

}  // namespace bimetal::net
