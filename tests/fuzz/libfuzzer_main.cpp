// Makes a libFuzzer program of the target that BIMETAL_FUZZ_TARGET names.

#include <cstddef>
#include <cstdint>

#include "fuzz/targets.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  bimetal::fuzz::BIMETAL_FUZZ_TARGET({reinterpret_cast<const std::byte*>(data), size});
  return 0;
}
