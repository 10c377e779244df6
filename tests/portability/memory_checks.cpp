#include "portability/memory_checks.h"

#include <fmt/format.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "bimetal/base/error.h"
#include "bimetal/base/wire.h"
#include "bimetal/comm/shm/segment.h"
#include "bimetal/net/shm/shared_memory.h"

namespace bimetal::testing {
namespace {

constexpr std::size_t kBytes = std::size_t{3} << 16;
constexpr std::chrono::minutes kLong{2};
constexpr std::byte kWritten{42};

void put_line(const std::string& line) {
  std::fputs((line + "\n").c_str(), stdout);
  std::fflush(stdout);
}

net::Bell bell_in(const net::SharedMemory& memory) {
  auto* const word = memory.bytes().data() + net::SharedMemory::kReserved;
  return {*reinterpret_cast<net::BellWord*>(word), memory.address()};
}

std::string text_of(const net::SegmentAddress& address) {
  WireWriter writer;
  comm::write_address(writer, address);
  std::string text;
  for (const std::byte byte : std::move(writer).take()) {
    text += fmt::format("{:02x}", static_cast<unsigned>(byte));
  }
  return text;
}

net::SegmentAddress address_in(std::string_view text) {
  std::vector<std::byte> bytes;
  for (std::size_t at = 0; at + 1 < text.size(); at += 2) {
    const std::string digits(text.substr(at, 2));
    bytes.push_back(static_cast<std::byte>(std::strtoul(digits.c_str(), nullptr, 16)));
  }
  WireReader reader(bytes);
  return comm::read_address(reader);
}

bool is_refused(const net::SegmentAddress& address, std::size_t bytes) {
  try {
    net::SharedMemory::open(address, bytes);
    return false;
  } catch (const Error& error) {
    return error.code() == ErrorCode::Unsupported;
  }
}

}  // namespace

int hold_memory() {
  auto made = net::SharedMemory::create(kBytes);
  for (const std::byte byte : made.bytes().subspan(net::SharedMemory::kReserved)) {
    if (byte != std::byte{0}) throw Error(ErrorCode::Internal, "memory that does not begin zeroed");
  }
  auto bell = bell_in(made);
  const auto seen = bell.seen();
  put_line("memory at " + text_of(made.address()));
  bell.sleep(seen, kLong);  // once, so that who is not woken says so
  put_line(fmt::format("woken by {}, {} written", bell.seen() - seen,
                       static_cast<int>(made.bytes().back())));
  made.forget_name();
  put_line("forgotten");
  while (std::getchar() != EOF) {
  }
  return EXIT_SUCCESS;
}

int find_memory(std::string_view where) {
  const auto address = address_in(where);
  auto other_nonce = address;
  other_nonce.nonce.back() ^= std::byte{1};
  if (!is_refused(other_nonce, kBytes) || !is_refused(address, kBytes + 4096)) {
    throw Error(ErrorCode::Internal, "memory that should have been refused");
  }
  try {
    const auto opened = net::SharedMemory::open(address, kBytes);
    opened.bytes().back() = kWritten;
    bell_in(opened).ring();
    put_line("found");
  } catch (const Error& error) {
    put_line(fmt::format("{}: {}", to_string(error.code()), error.what()));
  }
  return EXIT_SUCCESS;
}

}  // namespace bimetal::testing
