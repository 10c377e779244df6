#include "bimetal/device/device_name.h"

#include <ATen/Context.h>

#include <array>

#include "bimetal/device/host.h"

#if __has_include(<dlfcn.h>)
#include <dlfcn.h>
#endif

namespace bimetal::device {
namespace {

#if __has_include(<dlfcn.h>)

// A C function of a library that libtorch has already loaded, or that the driver installs.
template <typename Function>
Function* function_of(const char* library, const char* name) {
  void* handle = dlopen(library, RTLD_LAZY);
  return handle ? reinterpret_cast<Function*>(dlsym(handle, name)) : nullptr;
}

// The driver interfaces of CUDA and HIP are plain C and have kept these three functions' signatures
// since their first release, so no header of theirs is needed: init(flags), get(&handle, ordinal),
// name(text, size, handle); 0 is success. Both obey the variables that hide devices.
std::string driver_name(const char* library, const char* init, const char* get, const char* name,
                        int ordinal) {
  auto* initialise = function_of<int(unsigned)>(library, init);
  auto* get_device = function_of<int(int*, int)>(library, get);
  auto* get_name = function_of<int(char*, int, int)>(library, name);
  int handle = 0;
  std::array<char, 256> text{};
  if (!initialise || !get_device || !get_name || initialise(0) != 0 ||
      get_device(&handle, ordinal) != 0 || get_name(text.data(), text.size() - 1, handle) != 0)
    return "";
  return text.data();
}

std::string cuda_name(int ordinal) {
  if (at::globalContext().hasROCM()) {
    return driver_name("libamdhip64.so", "hipInit", "hipDeviceGet", "hipDeviceGetName", ordinal);
  }
  return driver_name("libcuda.so.1", "cuInit", "cuDeviceGet", "cuDeviceGetName", ordinal);
}

#else

std::string cuda_name(int /*ordinal*/) {
  return "";
}

#endif

}  // namespace

std::string accelerator_name(const torch::Device& device) {
  std::string name;
  if (device.is_cuda()) name = cuda_name(device.index());
  if (device.is_mps()) name = cpu_name();  // one chip, named as a whole
  return name.empty() ? device.str() : name;
}

}  // namespace bimetal::device
