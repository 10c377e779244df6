// Sections of the paging file under a random name, which Windows forgets with the last handle;
// mapped memory stays. The security is the user's default: nobody else opens them.
//
// A bell is an event with a name: WaitOnAddress wakes within one process alone. Whoever needs it first
// makes it, and it goes with the last process that has it.

#include <fmt/format.h>
#include <windows.h>

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "bimetal/base/error.h"
#include "bimetal/base/unicode/utf8.h"
#include "bimetal/net/noise.h"
#include "bimetal/net/shm/shared_memory.h"

namespace bimetal::net {

// Names of the objects by which processes of one user find each other's memory.

/// 128 random bits in hexadecimal, as it travels to the others.
std::string new_section_name();

/// The name of a section on Windows or, with a `suffix`, of an object that belongs to it. Only this
/// session of the system sees it. None for a name that is not ours, which may be anything.
std::optional<std::wstring> object_name(std::string_view name, std::wstring_view suffix = {});

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

constexpr std::size_t kRandomBytes = 16, kDigits = 2 * kRandomBytes;

// For want of an event. Windows makes more of it, mostly.
constexpr std::chrono::milliseconds kNap{1};

DWORD rounded_up(std::chrono::microseconds time) {
  return static_cast<DWORD>(std::chrono::ceil<std::chrono::milliseconds>(time).count());
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

std::string new_section_name() {
  ensure_sodium();
  std::array<unsigned char, kRandomBytes> bytes;
  randombytes_buf(bytes.data(), bytes.size());
  std::array<char, kDigits + 1> text;
  sodium_bin2hex(text.data(), text.size(), bytes.data(), bytes.size());
  return text.data();
}

std::optional<std::wstring> object_name(std::string_view name, std::wstring_view suffix) {
  const auto is_digit = [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); };
  if (name.size() != kDigits || !std::ranges::all_of(name, is_digit)) return std::nullopt;
  std::wstring whole = L"Local\\bimetal-";
  whole.append(name.begin(), name.end());
  return whole.append(suffix);
}

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
