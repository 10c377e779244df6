#include "bimetal/parallel/server/codec/pull_codec.h"

#include <fmt/format.h>

#include "bimetal/base/error.h"
#include "bimetal/comm/compress/dense_codec.h"

namespace bimetal::parallel::server {

void require_pull_scheme(comm::Scheme scheme, torch::ScalarType type) {
  switch (scheme) {
    case comm::Scheme::none: return;
    case comm::Scheme::float16:
    case comm::Scheme::bfloat16:
    case comm::Scheme::int8: break;
    default:
      throw Error(ErrorCode::Unsupported,
                  fmt::format("parameters cannot be pulled by '{}'; take float16, bfloat16 or int8",
                              comm::to_string(scheme)));
  }
  if (type == torch::kFloat32) return;
  throw Error(ErrorCode::Unsupported, "parameter servers send float32 alone in a shorter form");
}

std::shared_ptr<const EncodedPieces> PullCodec::encode(comm::Scheme scheme, std::uint64_t version,
                                                       const torch::Tensor& flat,
                                                       const ShardPlan& plan,
                                                       std::span<const std::uint32_t> pieces) {
  require_pull_scheme(scheme, flat.scalar_type());
  Made& made = made_[scheme];
  if (made.pieces && made.version == version) return made.pieces;
  // An older version may still be on its way to somebody.
  if (!made.pieces || made.pieces.use_count() > 1) {
    made.pieces = std::make_shared<EncodedPieces>();
    std::size_t end = 0;
    for (const auto number : pieces) {
      made.pieces->begins.push_back(end);
      end += comm::encoded_bytes(scheme, static_cast<std::size_t>(plan.pieces[number].count));
    }
    made.pieces->begins.push_back(end);
    made.pieces->bytes.resize(end);
  }
  made.version = version;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const Piece& piece = plan.pieces[pieces[i]];
    const auto begin = made.pieces->begins[i];
    comm::encode(
        scheme,
        {flat.const_data_ptr<float>() + piece.shard_offset, static_cast<std::size_t>(piece.count)},
        std::span(made.pieces->bytes).subspan(begin, made.pieces->begins[i + 1] - begin));
  }
  return made.pieces;
}

}  // namespace bimetal::parallel::server
