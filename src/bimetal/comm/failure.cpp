#include "bimetal/comm/failure.h"

#include <array>
#include <cstdint>
#include <string_view>

#include "bimetal/base/wire.h"

namespace bimetal::comm {
namespace {

constexpr std::uint8_t kFarewell = 0;
constexpr std::size_t kMaxText = kMaxAbortBytes - 64;
constexpr std::int32_t kNoRank = -1;

// The codes' numbers on the wire: the position in this list plus 1. Only ever appended to.
constexpr std::array kCodes = {
    ErrorCode::InvalidArgument,  ErrorCode::Unsupported,  ErrorCode::Timeout,
    ErrorCode::PeerLost,         ErrorCode::Aborted,      ErrorCode::Unauthorized,
    ErrorCode::ProtocolMismatch, ErrorCode::CallMismatch, ErrorCode::CorruptData,
    ErrorCode::OutOfMemory,      ErrorCode::NotFinite,    ErrorCode::System,
    ErrorCode::Internal,
};

std::uint8_t number_of(ErrorCode code) {
  for (std::size_t i = 0; i < kCodes.size(); ++i) {
    if (kCodes[i] == code) return static_cast<std::uint8_t>(i + 1);
  }
  return static_cast<std::uint8_t>(kCodes.size());
}

}  // namespace

std::vector<std::byte> encode(const AbortMessage& message) {
  WireWriter writer;
  if (!message.failure) {
    writer.u8(kFarewell);
    return std::move(writer).take();
  }
  writer.u8(number_of(message.failure->code));
  writer.i32(message.failure->rank.value_or(kNoRank));
  writer.string(std::string_view(message.failure->message).substr(0, kMaxText));
  return std::move(writer).take();
}

net::FrameHeader abort_header(std::uint32_t group) {
  net::FrameHeader header;
  header.kind = net::FrameKind::Abort;
  header.group = group;
  return header;
}

AbortMessage decode_abort(std::span<const std::byte> payload) {
  WireReader reader(payload);
  const std::uint8_t number = reader.u8();
  if (number == kFarewell) {
    reader.expect_end();
    return {};
  }
  if (number > kCodes.size()) throw Error(ErrorCode::CorruptData, "abort with an unknown code");
  Failure failure;
  failure.code = kCodes[number - 1];
  const std::int32_t rank = reader.i32();
  if (rank != kNoRank) failure.rank = rank;
  failure.message = reader.string();
  reader.expect_end();
  return {std::move(failure)};
}

}  // namespace bimetal::comm
