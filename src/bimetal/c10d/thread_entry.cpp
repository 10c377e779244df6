#include "bimetal/c10d/thread_entry.h"

#include <atomic>

namespace bimetal::c10d {
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
