#include <fmt/format.h>
#include <windows.h>

#include <thread>

#include "bimetal/base/unicode/windows_text.h"
#include "bimetal/launch/system/parent_watch.h"

namespace bimetal::launch {

void end_with_process(int pid) {
  constexpr UINT kStatus = 1;
  const HANDLE process = OpenProcess(SYNCHRONIZE, FALSE, static_cast<DWORD>(pid));
  if (process == nullptr) {
    throw windows_error(fmt::format("cannot watch process {}", pid), GetLastError());
  }
  std::thread([process] {
    WaitForSingleObject(process, INFINITE);
    // Nothing of ours is waited for: the job objects close, and what is in them ends.
    TerminateProcess(GetCurrentProcess(), kStatus);
  }).detach();
}

}  // namespace bimetal::launch
