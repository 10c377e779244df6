#include "bimetal/parallel/server/push_codec.h"

#include <fmt/format.h>

#include <cstring>

#include "bimetal/base/error.h"
#include "bimetal/comm/compress/dense_codec.h"
#include "bimetal/comm/compress/error_feedback.h"

namespace bimetal::parallel::server {

PushCodec::PushCodec(comm::Scheme scheme, const std::vector<torch::Tensor>& parameters)
    : scheme_(scheme) {
  if (scheme_ == comm::Scheme::none) return;
  if (!comm::is_dense(scheme_)) {
    throw Error(ErrorCode::Unsupported,
                fmt::format("parallel.compression is '{}', which parameter servers do not know; "
                            "take float16, bfloat16, int8, int4 or sign",
                            comm::to_string(scheme_)));
  }
  for (const auto& parameter : parameters) {
    if (parameter.scalar_type() != torch::kFloat32) {
      throw Error(ErrorCode::Unsupported,
                  "parameter servers take compressed gradients of float32 alone");
    }
    residuals_.emplace_back(static_cast<std::size_t>(parameter.numel()), 0.0f);
  }
}

std::shared_ptr<const std::vector<std::byte>> PushCodec::encode(
    std::size_t tensor, const Piece& piece, std::span<const std::byte> gradient) {
  if (scheme_ == comm::Scheme::none) return nullptr;
  const auto count = static_cast<std::size_t>(piece.count);
  const auto residual =
      std::span(residuals_[tensor]).subspan(static_cast<std::size_t>(piece.offset), count);
  std::vector<float> wanted(count), sent(count);
  std::memcpy(wanted.data(), gradient.data(), gradient.size());
  comm::add(wanted, residual);
  auto encoded = std::make_shared<std::vector<std::byte>>(comm::encoded_bytes(scheme_, count));
  comm::encode(scheme_, wanted, *encoded);
  comm::decode(scheme_, *encoded, sent);
  comm::remember_lost(wanted, sent, 1.0f, residual);
  return encoded;
}

}  // namespace bimetal::parallel::server
