// Linked into the program in place of base/release.cpp: the same program as another version.
#include "bimetal/base/release.h"

namespace bimetal {

std::string_view release() noexcept {
  return "0.0.9";
}

}  // namespace bimetal
