#include "bimetal/comm/compress/dense_codec.h"

#include <fmt/format.h>

#include "bimetal/base/error.h"
#include "bimetal/comm/compress/block_codec.h"
#include "bimetal/comm/compress/half_codec.h"
#include "bimetal/comm/compress/sign_codec.h"

namespace bimetal::comm {
namespace {

[[noreturn]] void not_dense(Scheme scheme) {
  throw Error(ErrorCode::Internal,
              fmt::format("{} has no form of its own for every element", to_string(scheme)));
}

}  // namespace

bool is_dense(Scheme scheme) noexcept {
  switch (scheme) {
    case Scheme::float16:
    case Scheme::bfloat16:
    case Scheme::int8:
    case Scheme::int4:
    case Scheme::sign: return true;
    case Scheme::none:
    case Scheme::topk:
    case Scheme::powersgd: break;
  }
  return false;
}

std::size_t encoded_bytes(Scheme scheme, std::size_t count) noexcept {
  switch (scheme) {
    case Scheme::float16:
    case Scheme::bfloat16: return half_bytes(count);
    case Scheme::int8: return int8_bytes(count);
    case Scheme::int4: return int4_bytes(count);
    case Scheme::sign: return sign_bytes(count);
    default: return 0;
  }
}

void encode(Scheme scheme, std::span<const float> values, std::span<std::byte> out) {
  switch (scheme) {
    case Scheme::float16: return encode_float16(values, out.data());
    case Scheme::bfloat16: return encode_bfloat16(values, out.data());
    case Scheme::int8: return encode_int8(values, out.data());
    case Scheme::int4: return encode_int4(values, out.data());
    case Scheme::sign: return encode_sign(values, out.data());
    default: not_dense(scheme);
  }
}

void decode(Scheme scheme, std::span<const std::byte> encoded, std::span<float> values) {
  if (!is_dense(scheme)) not_dense(scheme);
  if (const auto bytes = encoded_bytes(scheme, values.size()); encoded.size() != bytes) {
    throw Error(ErrorCode::CorruptData,
                fmt::format("{} elements by {} take {} bytes, but {} came", values.size(),
                            to_string(scheme), bytes, encoded.size()));
  }
  switch (scheme) {
    case Scheme::float16: return decode_float16(encoded.data(), values);
    case Scheme::bfloat16: return decode_bfloat16(encoded.data(), values);
    case Scheme::int8: return decode_int8(encoded.data(), values);
    case Scheme::int4: return decode_int4(encoded.data(), values);
    case Scheme::sign: return decode_sign(encoded.data(), values);
    default: return;
  }
}

}  // namespace bimetal::comm
