#include <fcntl.h>
#include <io.h>
#include <windows.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <limits>

#include "bimetal/base/error.h"
#include "bimetal/launch/local/pipe.h"

namespace bimetal::launch {
namespace {

/// About what Linux's pipes hold.
constexpr unsigned kPipeHolds = 64 << 10;

HANDLE handle_of(const FileDescriptor& descriptor) {
  return reinterpret_cast<HANDLE>(_get_osfhandle(descriptor.number()));
}

}  // namespace

void FileDescriptor::close() noexcept {
  if (number_ >= 0) _close(std::exchange(number_, -1));
}

Pipe Pipe::create() {
  std::array<int, 2> ends{};
  if (_pipe(ends.data(), kPipeHolds, _O_BINARY | _O_NOINHERIT) != 0) {
    throw system_error("cannot make a pipe", errno);
  }
  return {FileDescriptor(ends[0]), FileDescriptor(ends[1])};
}

void set_nonblocking(const FileDescriptor&) {}

void set_close_on_exec(const FileDescriptor& descriptor) {
  SetHandleInformation(handle_of(descriptor), HANDLE_FLAG_INHERIT, 0);
}

bool read_available(const FileDescriptor& descriptor, std::string& text) {
  return read_some(descriptor, text, std::numeric_limits<std::size_t>::max());
}

bool read_some(const FileDescriptor& descriptor, std::string& text, std::size_t most) {
  std::array<char, 4096> chunk;
  const std::size_t before = text.size();
  while (text.size() - before < most) {
    DWORD count = 0;
    if (!PeekNamedPipe(handle_of(descriptor), nullptr, 0, nullptr, &count, nullptr)) return false;
    if (count == 0) return true;
    count = std::min<DWORD>(count, chunk.size());
    if (!ReadFile(handle_of(descriptor), chunk.data(), count, &count, nullptr)) return false;
    text.append(chunk.data(), count);
  }
  return true;
}

bool write_all(const FileDescriptor& descriptor, std::string_view text) {
  while (!text.empty()) {
    const auto size = static_cast<DWORD>(std::min<std::size_t>(text.size(), kPipeHolds));
    DWORD count = 0;
    if (!WriteFile(handle_of(descriptor), text.data(), size, &count, nullptr)) return false;
    text.remove_prefix(count);
  }
  return true;
}

}  // namespace bimetal::launch
