#include "bimetal/base/release.h"

namespace bimetal {

std::string_view release() noexcept {
  return BIMETAL_VERSION;
}

}  // namespace bimetal
