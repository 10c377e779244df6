#pragma once
// The deadline of what ought to happen at once, on a busy machine, too.

#include <chrono>

#include "bimetal/base/deadline.h"

namespace bimetal::rendezvous {

inline Deadline soon() {
  return Deadline::after(std::chrono::seconds(20));
}

}  // namespace bimetal::rendezvous
