#pragma once

#include <span>

#include "bimetal/comm/work.h"

namespace bimetal::comm {

/// Blocks until all are done, so that nothing uses their buffers any more; then rethrows the error
/// of the first in the list that has one.
void wait_for_all(std::span<const Work> works);

}  // namespace bimetal::comm
