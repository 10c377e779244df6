#include "bimetal/train/out_of_memory.h"

#include <fmt/format.h>

namespace bimetal::train {

std::string remedy(const progress::RankFigures& rank, std::int64_t cap) {
  switch (rank.fit) {
    case progress::Fit::try_recomputing: return "it computes activations again for backward";
    case progress::Fit::try_smaller_pieces: return "it computes them in smaller micro-batches";
    case progress::Fit::too_large: return fmt::format("its share is capped at {}", cap);
    case progress::Fit::fits: break;
  }
  return {};
}

}  // namespace bimetal::train
