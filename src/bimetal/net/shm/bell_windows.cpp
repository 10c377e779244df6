// By an event with a name: WaitOnAddress wakes within one process alone. Whoever needs it first
// makes it, and it goes with the last process that has it.
#include <windows.h>

#include <algorithm>
#include <thread>

#include "bimetal/net/shm/bell.h"
#include "bimetal/net/shm/section_name_windows.h"

namespace bimetal::net {
namespace {

// For want of an event. Windows makes more of it, mostly.
constexpr std::chrono::milliseconds kNap{1};

DWORD rounded_up(std::chrono::microseconds time) {
  return static_cast<DWORD>(std::chrono::ceil<std::chrono::milliseconds>(time).count());
}

}  // namespace

Bell::Bell(BellWord& word, const SegmentAddress& address) : word_(&word) {
  const auto name = object_name(address.name, L"-bell");
  if (!name) return;
  constexpr BOOL kWakesOne = FALSE, kQuiet = FALSE;
  const HANDLE event = CreateEventW(nullptr, kWakesOne, kQuiet, name->c_str());
  if (event) event_ = std::shared_ptr<void>(event, CloseHandle);
}

// A ring between the look and the wait leaves the event signalled. One that the sleeper has seen
// without it, as well: its next sleep ends early.
void Bell::sleep(std::uint32_t seen, std::chrono::microseconds timeout) {
  if (this->seen() != seen) return;
  if (event_) {
    WaitForSingleObject(event_.get(), rounded_up(timeout));
  } else {
    std::this_thread::sleep_for(std::min<std::chrono::microseconds>(timeout, kNap));
  }
}

void Bell::ring() {
  word_->fetch_add(1, std::memory_order_release);
  if (event_) SetEvent(event_.get());
}

}  // namespace bimetal::net
