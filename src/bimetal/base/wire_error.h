#pragma once
// An Error as bytes, so that another process can throw it: u8 code, i32 rank (-1: none), its
// message as a string.

#include <optional>
#include <string_view>

#include "bimetal/base/error.h"
#include "bimetal/base/wire.h"

namespace bimetal {

/// Of the words, at most `longest` bytes.
inline void write_error(WireWriter& out, const Error& error,
                        std::size_t longest = std::string_view::npos) {
  out.u8(static_cast<std::uint8_t>(error.code()));
  out.i32(error.rank().value_or(-1));
  out.string(std::string_view(error.what()).substr(0, longest));
}

/// All that `bytes` hold. A code that this release does not know becomes Internal.
/// Error(CorruptData) for what is no error.
inline Error read_error(std::span<const std::byte> bytes) {
  WireReader in(bytes);
  const auto code = static_cast<ErrorCode>(in.u8());
  const auto rank = in.i32();
  const auto text = in.string();
  in.expect_end();
  return Error(code <= ErrorCode::Internal ? code : ErrorCode::Internal, text,
               rank >= 0 ? std::optional<int>(rank) : std::nullopt);
}

}  // namespace bimetal
