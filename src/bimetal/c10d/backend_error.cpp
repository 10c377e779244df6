#include "bimetal/c10d/backend_error.h"

#include <fmt/format.h>

#include <atomic>
#include <string>

namespace bimetal::c10d {
namespace {

std::string text_of(const Error& error) {
  const std::string rank = error.rank() ? fmt::format(", rank {}", *error.rank()) : "";
  return fmt::format("bimetal: {} [{}{}]", error.what(), to_string(error.code()), rank);
}

}  // namespace

BackendError::BackendError(const bimetal::Error& error)
    : c10::DistBackendError(text_of(error), nullptr), code_(error.code()), rank_(error.rank()) {}

std::exception_ptr as_backend_error(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const Error& ours) {
    return std::make_exception_ptr(BackendError(ours));
  } catch (...) {
    return std::current_exception();
  }
}

namespace {

std::atomic<void (*)()> on_enter{nullptr};
std::atomic<void (*)()> on_leave{nullptr};
thread_local bool entered = false;

}  // namespace

void set_thread_entry(void (*enter)(), void (*leave)()) {
  on_enter = enter;
  on_leave = leave;
}

void enter_thread() {
  if (entered) return;
  entered = true;
  if (const auto enter = on_enter.load()) enter();
}

void leave_thread() {
  if (!entered) return;
  entered = false;
  if (const auto leave = on_leave.load()) leave();
}

}  // namespace bimetal::c10d
