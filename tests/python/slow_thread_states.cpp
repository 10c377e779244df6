// Loaded before everything else into a rank: a thread that makes a thread state of the interpreter
// holds the lock over the list of them for a while, as if the system interrupted it there. (Where
// the interpreter is one file with its library, nothing is slowed down.)

#include <dlfcn.h>
#include <unistd.h>

#include <cstddef>

namespace {

constexpr useconds_t kMicroseconds = 3000;
constexpr std::ptrdiff_t kLengthOfFunction = 0x600;  // or more than that

using Release = void (*)(void*);

}  // namespace

extern "C" void PyThread_release_lock(void* lock) {
  static const auto release = reinterpret_cast<Release>(dlsym(RTLD_NEXT, "PyThread_release_lock"));
  static const auto* const make = static_cast<const char*>(dlsym(RTLD_NEXT, "PyThreadState_New"));
  const auto* const caller = static_cast<const char*>(__builtin_return_address(0));
  if (make != nullptr && caller > make && caller - make < kLengthOfFunction) usleep(kMicroseconds);
  release(lock);
}
