#include "bimetal/device/out_of_memory.h"

#include <ATen/DeviceAccelerator.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <new>
#include <string_view>
#include <system_error>

#include "bimetal/base/error.h"

namespace bimetal::device {
namespace {

// The CPU allocator and oneDNN have no type of their own for a failed allocation; these are their
// words. oneDNN also reports a failed scratch allocation as a primitive that it could not create.
constexpr std::array<std::string_view, 6> kWordsOfAllocators = {
    "can't allocate memory",          // c10's CPU allocator on POSIX
    "not enough memory",              // c10's CPU allocator on Windows
    "out of memory",                  // MPS, and drivers
    "could not create a memory",      // oneDNN: tensor storage
    "could not create a primitive",   // oneDNN: scratch memory
    "could not initialize a memory",  // oneDNN
};

bool speaks_of_memory(std::string_view message) {
  return std::ranges::any_of(kWordsOfAllocators, [&](std::string_view words) {
    return message.find(words) != std::string_view::npos;
  });
}

}  // namespace

bool is_out_of_memory(const std::exception_ptr& error) noexcept {
  try {
    std::rethrow_exception(error);
  } catch (const std::bad_alloc&) {
    return true;
  } catch (const c10::OutOfMemoryError&) {
    return true;
  } catch (const Error& e) {
    return e.code() == ErrorCode::OutOfMemory;
  } catch (const std::system_error& e) {
    // std::thread throws this when there is no room for another stack.
    return e.code() == std::errc::resource_unavailable_try_again ||
           e.code() == std::errc::not_enough_memory;
  } catch (const std::exception& e) {
    return speaks_of_memory(e.what());
  } catch (...) {
    return false;
  }
}

void give_memory_back(const torch::Device& device) {
  if (!device.is_cpu()) at::accelerator::emptyCache();
}

std::exception_ptr without_memory_for(const torch::Device& device,
                                      const std::function<void()>& work) {
  std::exception_ptr error;
  try {
    work();
    return nullptr;
  } catch (...) {
    error = std::current_exception();
    if (!is_out_of_memory(error)) throw;
  }
  // Outside the handler: half-built results have been freed by now.
  give_memory_back(device);
  return error;
}

}  // namespace bimetal::device
