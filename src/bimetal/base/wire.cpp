#include "bimetal/base/wire.h"

#include <bit>

#include "bimetal/base/error.h"

namespace bimetal {
namespace {

void put_integer(std::vector<std::byte>& out, std::uint64_t value, std::size_t width) {
  for (std::size_t i = 0; i < width; ++i) {
    out.push_back(static_cast<std::byte>((value >> (8 * i)) & 0xff));
  }
}

}  // namespace

void WireWriter::u8(std::uint8_t value) { put_integer(bytes_, value, 1); }
void WireWriter::u16(std::uint16_t value) { put_integer(bytes_, value, 2); }
void WireWriter::u32(std::uint32_t value) { put_integer(bytes_, value, 4); }
void WireWriter::u64(std::uint64_t value) { put_integer(bytes_, value, 8); }
void WireWriter::f64(double value) { u64(std::bit_cast<std::uint64_t>(value)); }

void WireWriter::raw(std::span<const std::byte> bytes) {
  bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
}

void WireWriter::string(std::string_view text) {
  u32(static_cast<std::uint32_t>(text.size()));
  raw(std::as_bytes(std::span(text.data(), text.size())));
}

std::span<const std::byte> WireReader::raw(std::size_t size) {
  if (size > bytes_.size()) {
    throw Error(ErrorCode::CorruptData, "message ends before its last field");
  }
  const auto head = bytes_.first(size);
  bytes_ = bytes_.subspan(size);
  return head;
}

std::uint64_t WireReader::integer(std::size_t width) {
  const auto field = raw(width);
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < width; ++i) {
    value |= static_cast<std::uint64_t>(field[i]) << (8 * i);
  }
  return value;
}

std::uint8_t WireReader::u8() { return static_cast<std::uint8_t>(integer(1)); }
std::uint16_t WireReader::u16() { return static_cast<std::uint16_t>(integer(2)); }
std::uint32_t WireReader::u32() { return static_cast<std::uint32_t>(integer(4)); }
std::uint64_t WireReader::u64() { return integer(8); }
double WireReader::f64() { return std::bit_cast<double>(u64()); }

std::string WireReader::string() {
  const auto bytes = raw(u32());
  return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

void WireReader::expect_end() const {
  if (!bytes_.empty()) throw Error(ErrorCode::CorruptData, "message has bytes past its last field");
}

}  // namespace bimetal
