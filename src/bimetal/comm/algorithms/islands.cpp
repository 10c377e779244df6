#include "bimetal/comm/algorithms/islands.h"

#include <algorithm>
#include <array>
#include <optional>

#include "bimetal/comm/algorithms/direct.h"
#include "bimetal/comm/algorithms/reduction.h"
#include "bimetal/comm/algorithms/ring.h"
#include "bimetal/comm/algorithms/tree.h"
#include "bimetal/comm/fabric.h"
#include "bimetal/comm/parts.h"
#include "bimetal/comm/shm/team.h"

namespace bimetal::comm {
namespace {

// The average size of an island's piece of a block: while one is between the islands the next is
// reduced inside, so that the links never wait for the memory.
constexpr std::size_t kPieceOfBlock = std::size_t{512} << 10;

// One call on one rank. Block by block: reduced inside, exchanged, spread inside.
class TwoLevels {
 public:
  TwoLevels(Channel& channel, std::span<std::byte> data, const Islands& islands,
            const std::vector<std::uint32_t>& weights, const Reduction& reduction)
      : data_(data),
        weights_(weights),
        reduction_(reduction),
        own_island_(island_of(islands.ranks, channel.rank())),
        inside_(channel.among(own_island_)),
        guard_(inside_),
        lanes_{data.size(), lanes_of(islands)},
        chunks_per_block_(
            std::max<std::size_t>(1, kPieceOfBlock * islands.ranks.size() / lanes_.chunk_bytes())) {
    if (islands.team) {
      islands.team->begin(channel.call(), guard_);
      team_.emplace(*islands.team, data, lanes_, reduction.dtype, reduction.op, guard_);
    }
    const int lane = inside_.rank();
    if (lane >= lanes_.number) return;
    std::vector<int> owners;
    for (const auto& island : islands.ranks)
      owners.push_back(island[static_cast<std::size_t>(lane)]);
    between_.emplace(channel.among(owners));
    const Range whole = lanes_.lane(lane);
    lane_ = data.subspan(whole.begin, whole.bytes);
    // Contributions to two blocks are under way at a time; one element more, since blocks may round
    // differently.
    const std::size_t element = size_of(reduction.dtype);
    const auto most = counts(std::min(block_bytes(), lane_.size()))[own_place()] + 1;
    for (auto& scratch : scratch_) {
      scratch = channel.scratch(DirectExchange::scratch_bytes(most * element, between_->size()));
    }
  }

  // Each step for a block comes before the next step for the block before it, on all ranks alike.
  void run() {
    const std::size_t chunks = lanes_.chunks();
    const std::size_t blocks = (chunks + chunks_per_block_ - 1) / chunks_per_block_;
    for (std::size_t b = 0; b < blocks + 2; ++b) {
      if (b < blocks) gather(b);
      if (b >= 1 && b - 1 < blocks && between_) exchange(b - 1)->reduce();
      if (b >= 2) spread(b - 2);
    }
    if (between_) between_->wait_all();
  }

 private:
  static int lanes_of(const Islands& islands) {
    return static_cast<int>(std::ranges::min(islands.ranks, {}, &std::vector<int>::size).size());
  }

  std::size_t block_bytes() const { return chunks_per_block_ * lanes_.chunk_bytes(); }
  std::size_t first_chunk(std::size_t block) const {
    return std::min(block * chunks_per_block_, lanes_.chunks());
  }
  std::size_t own_place() const { return static_cast<std::size_t>(between_->rank()); }
  std::vector<std::size_t> counts(std::size_t bytes) const {
    return counts_for(weights_, bytes / size_of(reduction_.dtype));
  }
  std::optional<DirectExchange>& exchange(std::size_t block) { return exchanges_[block % 3]; }

  void gather(std::size_t block) {
    if (team_) team_->reduce(first_chunk(block), first_chunk(block + 1));
    if (!between_) return;
    // The last lane may end before the others.
    const std::size_t begin = std::min(block * block_bytes(), lane_.size());
    const auto bytes = lane_.subspan(begin, std::min(block_bytes(), lane_.size() - begin));
    exchange(block).emplace(*between_, bytes, counts(bytes.size()), kPartBytes, scratch_[block % 2],
                            reduction_);
    exchange(block)->begin();
  }

  void spread(std::size_t block) {
    if (between_) exchange(block)->finish();
    if (team_) team_->spread(first_chunk(block), first_chunk(block + 1));
  }

  const std::span<std::byte> data_;
  const std::vector<std::uint32_t>& weights_;
  const Reduction reduction_;
  const std::vector<int>& own_island_;
  Channel inside_;
  ChannelGuard guard_;
  const Lanes lanes_;
  const std::size_t chunks_per_block_;
  std::optional<LaneReduction> team_;
  std::optional<Channel> between_;  // the owners of this rank's lane, if it has one
  std::span<std::byte> lane_;
  std::array<std::span<std::byte>, 2> scratch_;
  std::array<std::optional<DirectExchange>, 3> exchanges_;
};

}  // namespace

void islands_all_reduce(Channel& channel, std::span<std::byte> data, const Islands& islands,
                        const std::vector<std::uint32_t>& weights, const Reduction& reduction) {
  TwoLevels(channel, data, islands, weights, reduction).run();
}

void two_level_all_reduce(Channel& channel, std::span<std::byte> data,
                          const std::vector<std::vector<int>>& islands,
                          const Reduction& reduction) {
  auto inside = channel.among(island_of(islands, channel.rank()));
  tree_reduce(inside, data, 0, reduction.dtype, reduction.op);
  if (inside.rank() == 0) {
    auto between = channel.among(first_ranks(islands));
    ring_all_reduce(between, even_segments(data, between.size(), reduction.dtype), reduction);
  }
  tree_broadcast(inside, data, 0);
}

}  // namespace bimetal::comm
