// Sections of the paging file under a random name, which Windows forgets with the last handle; what
// has been mapped stays. The security is the user's default: nobody else opens them.
#include <fmt/format.h>
#include <windows.h>

#include <memory>
#include <string>
#include <utility>

#include "bimetal/base/error.h"
#include "bimetal/base/unicode/utf8.h"
#include "bimetal/net/shm/section_name_windows.h"
#include "bimetal/net/shm/shared_memory.h"

namespace bimetal::net {
namespace {

using Section = std::unique_ptr<void, decltype(&CloseHandle)>;

std::span<std::byte> map(HANDLE section, std::size_t bytes) {
  void* const memory = MapViewOfFile(section, FILE_MAP_READ | FILE_MAP_WRITE, 0, 0, bytes);
  if (!memory) throw windows_error("cannot map shared memory", GetLastError());
  return {static_cast<std::byte*>(memory), bytes};
}

Section make_section(const std::wstring& name, std::size_t bytes) {
  const auto size = static_cast<std::uint64_t>(bytes);
  Section made(
      CreateFileMappingW(INVALID_HANDLE_VALUE, nullptr, PAGE_READWRITE | SEC_COMMIT,
                         static_cast<DWORD>(size >> 32), static_cast<DWORD>(size), name.c_str()),
      CloseHandle);
  const DWORD outcome = GetLastError();
  if (!made || outcome == ERROR_ALREADY_EXISTS) {
    throw windows_error(fmt::format("cannot make {} bytes of shared memory", bytes), outcome);
  }
  return made;
}

}  // namespace

SharedMemory SharedMemory::create(std::size_t bytes) {
  SharedMemory made;
  made.address_.name = new_section_name();
  Section section = make_section(*object_name(made.address_.name), bytes);
  made.bytes_ = map(section.get(), bytes);
  made.handle_ = HandleToLong(section.release());  // of which 32 bits count
  made.write_nonce();
  return made;
}

SharedMemory SharedMemory::open(const SegmentAddress& address, std::size_t bytes) {
  const auto name = object_name(address.name);
  if (!name) throw Error(ErrorCode::Unsupported, "shared memory of another system");
  const Section section(OpenFileMappingW(FILE_MAP_READ | FILE_MAP_WRITE, FALSE, name->c_str()),
                        CloseHandle);
  if (!section) {
    const auto error = windows_error("cannot open shared memory " + address.name, GetLastError());
    throw Error(ErrorCode::Unsupported, error.what());
  }
  SharedMemory opened;
  try {
    opened.bytes_ = map(section.get(), bytes);
  } catch (const Error& error) {  // one that is smaller
    throw Error(ErrorCode::Unsupported, error.what());
  }
  opened.accept(address);
  return opened;
}

std::uint64_t SharedMemory::borrowed_bytes() {
  return 0;
}

void SharedMemory::forget_name() noexcept {
  if (handle_ != -1) CloseHandle(LongToHandle(std::exchange(handle_, -1)));
}

SharedMemory::~SharedMemory() {
  forget_name();
  if (!bytes_.empty()) UnmapViewOfFile(bytes_.data());
}

}  // namespace bimetal::net
