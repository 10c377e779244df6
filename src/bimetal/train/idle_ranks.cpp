#include "bimetal/train/idle_ranks.h"

#include <fmt/format.h>

namespace bimetal::train {

void IdleRanks::tell(const balance::Shares& shares, std::int64_t global_batch,
                     progress::Observer& observer) {
  idle_.resize(shares.size());
  for (std::size_t rank = 0; rank < shares.size(); ++rank) {
    const bool idle = shares[rank] == 0;
    if (idle && !idle_[rank]) {
      observer.on_notice(
          fmt::format("rank {} gets no samples: the others finish a batch of {} sooner without it",
                      rank, global_batch));
    }
    idle_[rank] = idle;
  }
}

}  // namespace bimetal::train
