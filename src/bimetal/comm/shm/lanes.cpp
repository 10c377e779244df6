#include "bimetal/comm/shm/lanes.h"

#include <algorithm>
#include <cstring>

#include "bimetal/comm/reduce/reduce_kernels.h"

namespace bimetal::comm {

LaneReduction::LaneReduction(ShmTeam& team, std::span<std::byte> data, const Lanes& lanes,
                             DType dtype, ReduceOp op, WaitGuard& guard)
    : team_(team),
      data_(data),
      lanes_(lanes),
      dtype_(dtype),
      op_(op == ReduceOp::avg ? ReduceOp::sum : op),
      guard_(guard) {}

template <typename Write, typename Read>
void LaneReduction::stream(std::size_t first, std::size_t last, Write write, Read read) {
  Step before{};
  for (std::size_t k = first; k <= last; ++k) {
    Step now{};
    if (k < last) {
      now.slot = team_.claim_slot(guard_);
      write(k, now.slot);
      now.step = team_.publish();
    }
    if (k > first) {
      read(k - 1, before);
      team_.release_slot(before.slot);
    }
    before = now;
  }
}

std::span<std::byte> LaneReduction::chunk(std::size_t k, int lane) const {
  const Range range = lanes_.lane(lane);
  const std::size_t begin = std::min(k * lanes_.chunk_bytes(), range.bytes);
  return data_.subspan(range.begin + begin, std::min(lanes_.chunk_bytes(), range.bytes - begin));
}

std::byte* LaneReduction::place(int rank, std::size_t slot, int lane) const {
  return team_.slot_of(rank, slot) + static_cast<std::size_t>(lane) * lanes_.chunk_bytes();
}

void LaneReduction::copy_in(std::size_t slot, std::size_t k, int lane) {
  const auto from = chunk(k, lane);
  if (!from.empty()) std::memcpy(place(team_.rank(), slot, lane), from.data(), from.size());
}

void LaneReduction::reduce(std::size_t first, std::size_t last) {
  stream(
      first, last,
      [&](std::size_t k, std::size_t slot) {
        for (int lane = 0; lane < lanes_.number; ++lane) {
          if (lane != team_.rank()) copy_in(slot, k, lane);
        }
      },
      [&](std::size_t k, const Step& at) {
        if (!owner()) return;
        team_.wait_for_all(at.step, guard_);
        const auto own = chunk(k, team_.rank());
        std::array<const std::byte*, kMaxTeam> sources;
        for (int rank = 0; rank < team_.size(); ++rank) {
          sources[rank] = rank == team_.rank() ? own.data() : place(rank, at.slot, team_.rank());
        }
        std::byte* const target = own.data();
        reduce_across(std::span(sources).first(team_.size()), {&target, 1},
                      own.size() / size_of(dtype_), dtype_, op_);
      });
}

void LaneReduction::spread(std::size_t first, std::size_t last) {
  stream(
      first, last,
      [&](std::size_t k, std::size_t slot) {
        if (owner()) copy_in(slot, k, team_.rank());
      },
      [&](std::size_t k, const Step& at) {
        for (int lane = 0; lane < lanes_.number; ++lane) {
          if (lane == team_.rank()) continue;
          team_.wait_for(lane, at.step, guard_);
          const auto to = chunk(k, lane);
          if (!to.empty()) std::memcpy(to.data(), place(lane, at.slot, lane), to.size());
        }
      });
}

}  // namespace bimetal::comm
