#pragma once
// Options of a model that every rank has.

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>

#include "bimetal/comm/compress/compression.h"
#include "bimetal/comm/group.h"

namespace bimetal::c10d {
class Island;
}

namespace bimetal::parallel {

/// Where summed gradients are.
enum class GradientHome {
  /// Grad() shares the bucket's memory: nothing is copied back. CPU only.
  /// Grad() stays where backward put it; its bucket is a copy on the host.
  automatic,  ///< bucket on the CPU, tensor on an accelerator
  bucket,
  tensor,
};

/// How ranks with the same model exchange its gradients. The same on every rank.
struct ReplicatedModelOptions {
  std::size_t bucket_bytes = 25u << 20;       ///< of gradients that are summed in one operation
  std::size_t first_bucket_bytes = 1u << 20;  ///< small, so that communication starts early
  std::chrono::milliseconds timeout{
      std::chrono::minutes(5)};  ///< for each exchange, after which an error ends it
  /// Compression of the gradients on the wire: docs/compression.md. The same on every rank. Steps
  /// are counted from the first one of this object, where the error feedback is empty, too.
  comm::CompressedAllReduceOptions compression = {};
  /// Gives the island on which gradients are summed where ranks share a vendor library
  /// (docs/islands.md), as c10d::FormIsland has it. Not together with compression.
  std::function<std::shared_ptr<c10d::Island>(comm::Group)> form_island = {};
  GradientHome home = GradientHome::automatic;  ///< where gradients lie
  bool equal = false;  ///< all ranks have the same values already: rank 0's need not be sent
};

}  // namespace bimetal::parallel
