// Windows: its MPI has another calling convention, for which nothing has been written, and so has
// its DNS-SD.
#include "bimetal/base/error.h"
#include "bimetal/net/dynamic_library.h"

namespace bimetal::net {

bool DynamicLibrary::supported() noexcept {
  return false;
}

DynamicLibrary::DynamicLibrary(const std::string& name) : name_(name) {
  throw Error(ErrorCode::Unsupported,
              name + " cannot be loaded: nothing that uses it has been written for this system");
}

void* DynamicLibrary::find(const char*) const noexcept {
  return handle_;
}

}  // namespace bimetal::net
