#include <algorithm>
#include <array>
#include <cstring>

#include "bimetal/base/error.h"
#include "bimetal/comm/reduce/reduce_kernels.h"
#include "bimetal/comm/shm/collectives.h"
#include "bimetal/comm/shm/team.h"

namespace bimetal::comm {
namespace {

using Step = ShmTeam::Step;

void copy_bytes(std::byte* to, const std::byte* from, std::size_t bytes) {
  if (bytes > 0) std::memcpy(to, from, bytes);
}

// Remembers the slot and the step of the chunks under way.
struct InFlight {
  std::array<std::size_t, Segment::kSlots> slot{};
  std::array<Step, Segment::kSlots> written{}, reduced{};
};

class Pipeline {
 public:
  Pipeline(ShmTeam& team, const Call& call, const Operands& operands, WaitGuard& guard)
      : team_(team),
        call_(call),
        operands_(operands),
        guard_(guard),
        rank_(team.rank()),
        size_(team.size()),
        bytes_(call.count * size_of(call.dtype)) {}

  void all_reduce(bool wanted_here);
  void reduce_scatter();
  void all_gather(bool wanted_here);
  void broadcast();
  void scatter();
  void all_to_all();

 private:
  // For each chunk: write(k, own slot), a step, and one chunk later read(k, slot, step).
  template <typename Write, typename Read>
  void stream(std::size_t chunks, Write write, Read read) {
    std::size_t last_slot = 0;
    Step last_step = 0;
    for (std::size_t k = 0; k <= chunks; ++k) {
      std::size_t slot = 0;
      Step step = 0;
      if (k < chunks) {
        slot = team_.claim_slot(guard_);
        write(k, team_.slot_of(rank_, slot));
        step = team_.publish();
      }
      if (k > 0) {
        read(k - 1, last_slot, last_step);
        team_.release_slot(last_slot);
      }
      last_slot = slot;
      last_step = step;
    }
  }

  ShmTeam& team_;
  const Call& call_;
  const Operands& operands_;
  WaitGuard& guard_;
  const int rank_, size_;
  const std::size_t bytes_;  // of the call's count
};

void Pipeline::all_reduce(bool wanted_here) {
  const Chunks chunks(bytes_, ShmTeam::slot_bytes());
  std::byte* const data = operands_.output.data();
  InFlight flight;
  const auto piece = [&](std::size_t k, int j) { return piece_of(chunks.bytes(k), j, size_); };
  const auto place = [](std::size_t k) { return k % Segment::kSlots; };

  const auto write = [&](std::size_t k) {
    const std::size_t slot = flight.slot[place(k)] = team_.claim_slot(guard_);
    for (int j = 0; j < size_; ++j) {
      if (j == rank_) continue;
      const Range part = piece(k, j);
      copy_bytes(team_.slot_of(rank_, slot) + part.begin, data + chunks.begin(k) + part.begin,
                 part.bytes);
    }
    flight.written[place(k)] = team_.publish();
  };
  const auto reduce = [&](std::size_t k) {
    team_.wait_for_all(flight.written[place(k)], guard_);
    const Range part = piece(k, rank_);
    std::array<const std::byte*, kMaxTeam> sources;
    for (int r = 0; r < size_; ++r) {
      sources[r] = team_.slot_of(r, flight.slot[place(k)]) + part.begin;
    }
    std::byte* const own = data + chunks.begin(k) + part.begin;
    sources[rank_] = own;
    const std::array<std::byte*, 2> targets{
        team_.slot_of(rank_, flight.slot[place(k)]) + part.begin, own};
    reduce_across(std::span(sources).first(size_), targets, part.bytes / size_of(call_.dtype),
                  call_.dtype, *call_.reduce_op);
    flight.reduced[place(k)] = team_.publish();
  };
  const auto read = [&](std::size_t k) {
    for (int j = 0; j < size_ && wanted_here; ++j) {
      if (j == rank_) continue;
      team_.wait_for(j, flight.reduced[place(k)], guard_);
      const Range part = piece(k, j);
      copy_bytes(data + chunks.begin(k) + part.begin,
                 team_.slot_of(j, flight.slot[place(k)]) + part.begin, part.bytes);
    }
    team_.release_slot(flight.slot[place(k)]);
  };
  for (std::size_t k = 0; k < chunks.number + 2; ++k) {
    if (k < chunks.number) write(k);
    if (k >= 1 && k - 1 < chunks.number) reduce(k - 1);
    if (k >= 2) read(k - 2);
  }
}

void Pipeline::reduce_scatter() {
  const auto n = static_cast<std::size_t>(size_);
  const auto own = static_cast<std::size_t>(rank_);
  const Parts whole(call_, size_);
  const Chunks chunks(whole.longest, ShmTeam::slot_bytes() / n);
  stream(
      chunks.number,
      [&](std::size_t k, std::byte* slot) {
        for (std::size_t j = 0; j < n; ++j) {
          if (j == own) continue;
          const Range piece = whole.of_chunk(chunks, k, j);
          copy_bytes(slot + j * chunks.length, operands_.input.data() + piece.begin, piece.bytes);
        }
      },
      [&](std::size_t k, std::size_t slot, Step step) {
        team_.wait_for_all(step, guard_);
        const Range piece = whole.of_chunk(chunks, k, own);
        std::array<const std::byte*, kMaxTeam> sources;
        for (int r = 0; r < size_; ++r) {
          sources[r] = team_.slot_of(r, slot) + own * chunks.length;
        }
        sources[rank_] = operands_.input.data() + piece.begin;
        std::byte* const target = operands_.output.data() + (piece.begin - whole.ranges[own].begin);
        reduce_across(std::span(sources).first(size_), {&target, 1},
                      piece.bytes / size_of(call_.dtype), call_.dtype, *call_.reduce_op);
      });
}

void Pipeline::all_gather(bool wanted_here) {
  const Parts whole(call_, size_);
  const Chunks chunks(whole.longest, ShmTeam::slot_bytes());
  const Range mine = whole.ranges[static_cast<std::size_t>(rank_)];
  std::byte* const output = operands_.output.data();
  // The input may lie in its place already.
  if (wanted_here && mine.bytes > 0 && output + mine.begin != operands_.input.data()) {
    std::memmove(output + mine.begin, operands_.input.data(), mine.bytes);
  }
  stream(
      chunks.number,
      [&](std::size_t k, std::byte* slot) {
        if (wanted_here && call_.operation == Operation::gather) return;  // nobody else needs it
        const Range piece = whole.of_chunk(chunks, k, static_cast<std::size_t>(rank_));
        copy_bytes(slot, operands_.input.data() + (piece.begin - mine.begin), piece.bytes);
      },
      [&](std::size_t k, std::size_t slot, Step step) {
        for (int r = 0; r < size_ && wanted_here; ++r) {
          if (r == rank_) continue;
          team_.wait_for(r, step, guard_);
          const Range piece = whole.of_chunk(chunks, k, static_cast<std::size_t>(r));
          copy_bytes(output + piece.begin, team_.slot_of(r, slot), piece.bytes);
        }
      });
}

void Pipeline::broadcast() {
  const Chunks chunks(bytes_, ShmTeam::slot_bytes());
  const bool root = rank_ == call_.root;
  stream(
      chunks.number,
      [&](std::size_t k, std::byte* slot) {
        if (root) copy_bytes(slot, operands_.input.data() + chunks.begin(k), chunks.bytes(k));
      },
      [&](std::size_t k, std::size_t slot, Step step) {
        if (root) return;
        team_.wait_for(call_.root, step, guard_);
        copy_bytes(operands_.output.data() + chunks.begin(k), team_.slot_of(call_.root, slot),
                   chunks.bytes(k));
      });
}

void Pipeline::scatter() {
  const auto n = static_cast<std::size_t>(size_);
  const Chunks chunks(bytes_, ShmTeam::slot_bytes() / n);
  const auto own = static_cast<std::size_t>(rank_);
  const bool root = rank_ == call_.root;
  if (root && operands_.output.data() != operands_.input.data() + own * bytes_) {
    std::memmove(operands_.output.data(), operands_.input.data() + own * bytes_, bytes_);
  }
  stream(
      chunks.number,
      [&](std::size_t k, std::byte* slot) {
        for (std::size_t j = 0; j < n && root; ++j) {
          if (j == own) continue;
          copy_bytes(slot + j * chunks.length,
                     operands_.input.data() + j * bytes_ + chunks.begin(k), chunks.bytes(k));
        }
      },
      [&](std::size_t k, std::size_t slot, Step step) {
        if (root) return;
        team_.wait_for(call_.root, step, guard_);
        copy_bytes(operands_.output.data() + chunks.begin(k),
                   team_.slot_of(call_.root, slot) + own * chunks.length, chunks.bytes(k));
      });
}

void Pipeline::all_to_all() {
  // Each pair has a length of its own: every rank looks at all of them first, so that all make the
  // same number of steps.
  team_.wait_for_all(team_.publish(), guard_);
  const std::size_t element = size_of(call_.dtype);
  std::size_t longest = 0;
  for (int from = 0; from < size_; ++from) {
    for (int to = 0; to < size_; ++to) {
      if (from != to) longest = std::max<std::size_t>(longest, team_.pair_count(from, to));
    }
  }
  const Chunks chunks(longest * element, ShmTeam::slot_bytes() / static_cast<std::size_t>(size_));
  const Parts from(call_.send_counts, element), to(call_.recv_counts, element);
  const auto own = static_cast<std::size_t>(rank_);
  if (const std::size_t kept = from.ranges[own].bytes; kept > 0) {
    std::memmove(operands_.output.data() + to.ranges[own].begin,
                 operands_.input.data() + from.ranges[own].begin, kept);
  }
  stream(
      chunks.number,
      [&](std::size_t k, std::byte* slot) {
        for (std::size_t j = 0; j < from.ranges.size(); ++j) {
          if (j == own) continue;
          const Range piece = from.of_chunk(chunks, k, j);
          copy_bytes(slot + j * chunks.length, operands_.input.data() + piece.begin, piece.bytes);
        }
      },
      [&](std::size_t k, std::size_t slot, Step step) {
        for (int r = 0; r < size_; ++r) {
          if (r == rank_) continue;
          team_.wait_for(r, step, guard_);
          const Range piece = to.of_chunk(chunks, k, static_cast<std::size_t>(r));
          copy_bytes(operands_.output.data() + piece.begin,
                     team_.slot_of(r, slot) + own * chunks.length, piece.bytes);
        }
      });
}

void run_through_slots(ShmTeam& team, const Call& call, const Operands& operands,
                       WaitGuard& guard) {
  Pipeline pipeline(team, call, operands, guard);
  const bool at_root = team.rank() == call.root;
  switch (call.operation) {
    case Operation::all_reduce: return pipeline.all_reduce(true);
    case Operation::reduce: return pipeline.all_reduce(at_root);
    case Operation::reduce_scatter: return pipeline.reduce_scatter();
    case Operation::all_gather: return pipeline.all_gather(true);
    case Operation::gather: return pipeline.all_gather(at_root);
    case Operation::broadcast: return pipeline.broadcast();
    case Operation::scatter: return pipeline.scatter();
    case Operation::all_to_all: return pipeline.all_to_all();
    case Operation::all_gather_bytes:
    case Operation::barrier:
    case Operation::send_recv: break;
  }
  throw Error(ErrorCode::Internal, "an operation without an algorithm in shared memory");
}

}  // namespace

bool run_pipelined(ShmTeam& team, const Call& call, const Operands& operands,
                   const InPlace& in_place, WaitGuard& guard) {
  team.begin(call, guard);
  if (in_place.possible && others_reach(call.operation) &&
      run_in_place(team, call, operands, in_place.arena, guard)) {
    return true;
  }
  run_through_slots(team, call, operands, guard);
  return false;
}

}  // namespace bimetal::comm
