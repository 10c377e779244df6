// Windows: its MPI has another calling convention, for which nothing has been written.
#include "bimetal/base/error.h"
#include "bimetal/net/mpi/dynamic_library.h"

namespace bimetal::net::mpi {

bool DynamicLibrary::supported() noexcept {
  return false;
}

DynamicLibrary::DynamicLibrary(const std::string& name) : name_(name) {
  throw Error(ErrorCode::Unsupported,
              name + " cannot be loaded: the MPI transport has not been written for this system");
}

void* DynamicLibrary::find(const char*) const noexcept {
  return handle_;
}

}  // namespace bimetal::net::mpi
