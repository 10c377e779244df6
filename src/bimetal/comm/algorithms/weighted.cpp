#include "bimetal/comm/algorithms/weighted.h"

#include <algorithm>

#include "bimetal/comm/parts.h"
#include "bimetal/comm/reduce_kernels.h"

namespace bimetal::comm {
namespace {

using Parts = std::vector<std::span<std::byte>>;

// The message is dealt with in blocks, so that contributions wait in memory of this size at most
// for each rank that they come from.
constexpr std::size_t kBlockBytes = std::size_t{32} << 20;

// Small parts, since the last of them makes its way back when the slow link is done otherwise.
std::size_t part_bytes_for(std::size_t block_bytes) {
  constexpr std::size_t kLeast = std::size_t{16} << 10;
  constexpr std::size_t kAligned = 4096;
  return std::clamp(block_bytes / 256 / kAligned * kAligned, kLeast, kPartBytes);
}

// One block. Messages from one rank to another: its contributions, then its results.
class Exchange {
 public:
  Exchange(Channel& channel, std::span<std::byte> block, const std::vector<std::size_t>& counts,
           std::span<std::byte> scratch, const Reduction& reduction)
      : channel_(channel), scratch_(scratch), reduction_(reduction) {
    const std::size_t part_bytes = part_bytes_for(block.size());
    for (const std::size_t count : counts) {
      const auto piece = block.first(count * size_of(reduction.dtype));
      block = block.subspan(piece.size());
      // No messages for a rank without a piece: empty ones would cost what short ones cost.
      pieces_.push_back(piece.empty() ? Parts() : parts_of(piece, part_bytes));
    }
  }

  void run() {
    post_contributions();
    post_results();
    send_contributions();
    for (std::size_t part = 0; part < own().size(); ++part) reduce(part);
    channel_.wait_all();
  }

 private:
  struct Arriving {
    std::span<std::byte> bytes;
    Channel::Ticket ticket;
  };

  const Parts& own() const { return pieces_[static_cast<std::size_t>(channel_.rank())]; }
  const Parts& piece_of(int rank) const { return pieces_[static_cast<std::size_t>(rank)]; }

  void post_contributions() {
    for (int from = 0; from < channel_.size(); ++from) {
      if (from == channel_.rank()) continue;
      auto& arriving = contributions_.emplace_back();
      for (const auto part : own()) {
        const auto room = scratch_.first(part.size());
        scratch_ = scratch_.subspan(part.size());
        arriving.push_back({room, channel_.receive(from, room)});
      }
    }
  }

  // A result lands on what this rank has contributed to it, which has left this memory by then.
  void post_results() {
    for (int step = 1; step < channel_.size(); ++step) {
      const int from = channel_.neighbour(step);
      for (const auto part : piece_of(from)) channel_.receive_part(from, part, {});
    }
  }

  // Part by part over all owners, so that all of them can begin at once.
  void send_contributions() {
    const std::size_t longest = std::ranges::max(pieces_, {}, &Parts::size).size();
    for (std::size_t part = 0; part < longest; ++part) {
      for (int step = 1; step < channel_.size(); ++step) {
        const int to = channel_.neighbour(step);
        if (part < piece_of(to).size()) channel_.send_part(to, piece_of(to)[part]);
      }
    }
  }

  // In the order of the ranks, so that the bits of a run are those of the next.
  void reduce(std::size_t part) {
    const auto data = own()[part];
    for (const auto& from : contributions_) {
      channel_.wait(from[part].ticket);
      accumulate(data.data(), from[part].bytes.data(), data.size() / size_of(reduction_.dtype),
                 reduction_.dtype, reduction_.op);
    }
    reduction_.finish(data);
    for (int step = 1; step < channel_.size(); ++step) {
      channel_.send_part(channel_.neighbour(step), data);
    }
  }

  Channel& channel_;
  std::span<std::byte> scratch_;
  const Reduction& reduction_;
  std::vector<Parts> pieces_;                         // by rank
  std::vector<std::vector<Arriving>> contributions_;  // by other rank
};

// The shares' sum where every link takes `time` for a message of one byte.
double covered(const std::vector<double>& bandwidths, double time) {
  const double others = static_cast<double>(bandwidths.size()) - 2;
  double sum = 0;
  for (const double bandwidth : bandwidths) {
    sum += std::max(0.0, (time * bandwidth - 1) / others);
  }
  return sum;
}

}  // namespace

std::vector<std::uint32_t> weights_for(const std::vector<double>& bandwidths) {
  const std::size_t n = bandwidths.size();
  std::vector<double> shares(n, 1.0 / static_cast<double>(n));
  if (n > 2) {
    // The least time in which the links cover the whole message, by bisection.
    double low = 0, high = static_cast<double>(n) / std::ranges::min(bandwidths);
    for (int i = 0; i < 100; ++i) {
      const double middle = (low + high) / 2;
      (covered(bandwidths, middle) < 1 ? low : high) = middle;
    }
    for (std::size_t r = 0; r < n; ++r) {
      shares[r] = std::max(0.0, (high * bandwidths[r] - 1) / (static_cast<double>(n) - 2));
    }
  }
  std::vector<std::uint32_t> weights(n);
  for (std::size_t r = 0; r < n; ++r) {
    weights[r] = static_cast<std::uint32_t>(shares[r] * kWholeWeight);
  }
  return weights;
}

std::vector<std::size_t> counts_for(const std::vector<std::uint32_t>& weights, std::size_t count) {
  std::uint64_t all = 0;
  for (const auto weight : weights) all += weight;
  std::vector<std::size_t> counts;
  std::uint64_t before = 0;
  std::size_t begin = 0;
  for (const auto weight : weights) {
    before += weight;
    // Where the rank's piece ends; without overflow for any count below 2^44.
    const std::size_t end = count / all * before + count % all * before / all;
    counts.push_back(end - begin);
    begin = end;
  }
  return counts;
}

void weighted_all_reduce(Channel& channel, std::span<std::byte> data,
                         const std::vector<std::uint32_t>& weights, const Reduction& reduction) {
  if (channel.size() == 1) return reduction.finish(data);
  const std::size_t element = size_of(reduction.dtype);
  const std::size_t block = std::min(data.size(), kBlockBytes);
  const auto most = counts_for(weights, block / element)[static_cast<std::size_t>(channel.rank())];
  // One element more: a shorter last block may round differently.
  const auto scratch =
      channel.scratch((most + 1) * element * static_cast<std::size_t>(channel.size() - 1));
  while (!data.empty()) {
    const auto now = data.first(std::min(data.size(), block));
    data = data.subspan(now.size());
    Exchange(channel, now, counts_for(weights, now.size() / element), scratch, reduction).run();
  }
}

}  // namespace bimetal::comm
