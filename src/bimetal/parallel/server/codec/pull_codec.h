#pragma once
// Compresses parameters before they are pulled. They are whole values, not changes. Only the
// worker's copy is rounded; the server's own values are not. So no error adds up, and no feedback
// is needed.

#include <torch/csrc/api/include/torch/types.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "bimetal/comm/compress/compression.h"
#include "bimetal/parallel/server/shard_plan.h"

namespace bimetal::parallel::server {

/// Error(Unsupported) unless parameters of that type can be pulled so: float32 by float16, bfloat16
/// or int8, anything by none. Fewer bits suffice for gradients, whose errors are fed back, but not
/// for values.
void require_pull_scheme(comm::Scheme scheme, torch::ScalarType type);

/// The pieces of one shard, so written.
struct EncodedPieces {
  std::vector<std::byte> bytes;
  std::vector<std::size_t> begins;  ///< per piece of the shard, and the end

  std::span<const std::byte> piece(std::size_t index) const {
    return std::span(bytes).subspan(begins[index], begins[index + 1] - begins[index]);
  }
};

/// What one server's pieces look like on the wire. Use from one thread.
class PullCodec {
 public:
  /// `flat`: the shard's values of version `version`; `pieces`: numbers within the plan. Made once
  /// per version and scheme, whoever asks for it.
  std::shared_ptr<const EncodedPieces> encode(comm::Scheme scheme, std::uint64_t version,
                                              const torch::Tensor& flat, const ShardPlan& plan,
                                              std::span<const std::uint32_t> pieces);

 private:
  struct Made {
    std::uint64_t version = 0;
    std::shared_ptr<EncodedPieces> pieces;
  };
  std::map<comm::Scheme, Made> made_;
};

}  // namespace bimetal::parallel::server
