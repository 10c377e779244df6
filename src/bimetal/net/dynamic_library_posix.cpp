#include <dlfcn.h>

#include "bimetal/base/error.h"
#include "bimetal/net/dynamic_library.h"

namespace bimetal::net {

bool DynamicLibrary::supported() noexcept {
  return true;
}

DynamicLibrary::DynamicLibrary(const std::string& name) : name_(name) {
  // Open MPI loads plugins that look for its own symbols among those of the whole program.
  handle_ = ::dlopen(name.c_str(), RTLD_NOW | RTLD_GLOBAL);
  if (handle_ != nullptr) return;
  const char* const reason = ::dlerror();
  throw Error(ErrorCode::Unsupported, reason != nullptr ? reason : name + " cannot be loaded");
}

void* DynamicLibrary::find(const char* symbol) const noexcept {
  return ::dlsym(handle_, symbol);
}

}  // namespace bimetal::net
