#include "bimetal/comm/algorithms/reduction.h"

#include <algorithm>

#include "bimetal/comm/algorithms/direct.h"
#include "bimetal/comm/parts.h"
#include "bimetal/comm/reduce/reduce_kernels.h"

namespace bimetal::comm {

Combine Reduction::combine() const {
  return [dtype = dtype, op = op](std::span<std::byte> there, std::span<const std::byte> arrived) {
    accumulate(there.data(), arrived.data(), there.size() / size_of(dtype), dtype, op);
  };
}

Combine Reduction::combine_last() const {
  if (op != ReduceOp::avg) return combine();
  return [*this](std::span<std::byte> there, std::span<const std::byte> arrived) {
    accumulate(there.data(), arrived.data(), there.size() / size_of(dtype), dtype, op);
    finish(there);
  };
}

void Reduction::finish(std::span<std::byte> data) const {
  if (op == ReduceOp::avg) divide(data.data(), data.size() / size_of(dtype), dtype, size);
}

namespace {

// The message is dealt with in blocks, so that contributions wait in memory of this size at most
// for each rank that they come from.
constexpr std::size_t kBlockBytes = std::size_t{32} << 20;

// Small parts, since the last of them makes its way back when the slow link is done otherwise.
std::size_t part_bytes_for(std::size_t block_bytes) {
  constexpr std::size_t kLeast = std::size_t{16} << 10;
  constexpr std::size_t kAligned = 4096;
  return std::clamp(block_bytes / 256 / kAligned * kAligned, kLeast, kPartBytes);
}

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
      channel.scratch(DirectExchange::scratch_bytes((most + 1) * element, channel.size()));
  while (!data.empty()) {
    const auto now = data.first(std::min(data.size(), block));
    data = data.subspan(now.size());
    DirectExchange exchange(channel, now, counts_for(weights, now.size() / element),
                            part_bytes_for(now.size()), scratch, reduction);
    exchange.begin();
    exchange.reduce();
    channel.wait_all();
  }
}

}  // namespace bimetal::comm
