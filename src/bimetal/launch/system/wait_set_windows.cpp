#include <io.h>
#include <windows.h>

#include <algorithm>
#include <vector>

#include "bimetal/launch/system/wait_set.h"

namespace bimetal::launch {
namespace {

/// Windows wakes nobody for a pipe: how often they are looked at.
constexpr std::chrono::milliseconds kPipesLookedAtEvery{5};

bool has_news(int descriptor) {
  DWORD available = 0;
  const auto handle = reinterpret_cast<HANDLE>(_get_osfhandle(descriptor));
  return !PeekNamedPipe(handle, nullptr, 0, nullptr, &available, nullptr) || available > 0;
}

}  // namespace

struct WaitSet::Entries {
  std::vector<int> readable;
  bool any_writable = false;
};

WaitSet::WaitSet() : entries_(std::make_unique<Entries>()) {}
WaitSet::~WaitSet() = default;

void WaitSet::add_readable(int descriptor) {
  entries_->readable.push_back(descriptor);
}

void WaitSet::add_writable(int) {
  entries_->any_writable = true;
}

void WaitSet::wait(std::chrono::milliseconds most) {
  const auto until = std::chrono::steady_clock::now() + most;
  while (std::ranges::none_of(entries_->readable, has_news)) {
    const auto left = until - std::chrono::steady_clock::now();
    if (left <= left.zero()) return;
    Sleep(static_cast<DWORD>(kPipesLookedAtEvery.count()));
    // Whether a pipe takes more, its writer finds out (outgoing_bytes.h).
    if (entries_->any_writable) return;
  }
}

}  // namespace bimetal::launch
