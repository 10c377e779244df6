#pragma once
// Little-endian, fixed-width encoding of numbers and byte strings, for every byte that Bimetal puts
// on a network. It does not depend on the host's byte order and alignment. docs/protocol.md lists
// the layouts that are built from it.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace bimetal {

/// Values one after the other, little-endian. Use from one thread.
class WireWriter {
 public:
  void u8(std::uint8_t value);    ///< 1 byte
  void u16(std::uint16_t value);  ///< 2 bytes
  void u32(std::uint32_t value);  ///< 4 bytes
  void u64(std::uint64_t value);  ///< 8 bytes
  /// 4 bytes, two's complement.
  void i32(std::int32_t value) { u32(static_cast<std::uint32_t>(value)); }
  void i64(std::int64_t value) { u64(static_cast<std::uint64_t>(value)); }  ///< 8 bytes, likewise
  void f64(double value);                                                   ///< 8 bytes, IEEE 754

  /// Raw bytes, without a length.
  void raw(std::span<const std::byte> bytes);

  /// u32 length, then the bytes.
  void string(std::string_view text);

  const std::vector<std::byte>& bytes() const noexcept { return bytes_; }  ///< so far
  std::vector<std::byte> take() && { return std::move(bytes_); }  ///< the same, without a copy

 private:
  std::vector<std::byte> bytes_;
};

/// Reads what WireWriter wrote. Every read is bounds-checked: running past the end throws
/// Error(CorruptData), and a length is believed only when that many bytes are really there.
class WireReader {
 public:
  /// Reads `bytes`, which must outlive it.
  explicit WireReader(std::span<const std::byte> bytes) : bytes_(bytes) {}

  std::uint8_t u8();                                               ///< 1 byte
  std::uint16_t u16();                                             ///< 2 bytes
  std::uint32_t u32();                                             ///< 4 bytes
  std::uint64_t u64();                                             ///< 8 bytes
  std::int32_t i32() { return static_cast<std::int32_t>(u32()); }  ///< 4 bytes
  std::int64_t i64() { return static_cast<std::int64_t>(u64()); }  ///< 8 bytes
  double f64();                                                    ///< 8 bytes
  std::span<const std::byte> raw(std::size_t size);  ///< so many bytes, where they lie
  std::string string();                              ///< as WireWriter::string() wrote it

  std::size_t remaining() const noexcept { return bytes_.size(); }  ///< bytes that are left

  /// Throws Error(CorruptData) unless everything has been read.
  void expect_end() const;

 private:
  std::uint64_t integer(std::size_t width);
  std::span<const std::byte> bytes_;
};

}  // namespace bimetal
