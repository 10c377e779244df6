#include "bimetal/comm/group/all_reducer.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <optional>
#include <vector>

#include "bimetal/base/error.h"
#include "bimetal/base/log.h"
#include "bimetal/comm/algorithms/direct.h"
#include "bimetal/comm/algorithms/islands.h"
#include "bimetal/comm/algorithms/reduction.h"
#include "bimetal/comm/algorithms/ring.h"
#include "bimetal/comm/algorithms/tree.h"
#include "bimetal/comm/fabric.h"

namespace bimetal::comm {
namespace {

// The first message longer than this has the links measured. A group that never sends one starts
// at once and gains little from knowing them.
constexpr std::size_t kWorthMeasuring = std::size_t{256} << 10;

using Clock = std::chrono::steady_clock;

constexpr int kShortExchanges = 4;
constexpr std::size_t kFirstProbe = std::size_t{64} << 10;
constexpr std::size_t kLastProbe = std::size_t{4} << 20;
// Longer than the data that a shaper or a switch lets through at once, and than a scheduler's
// whims.
constexpr std::uint64_t kLongEnough = 10'000'000;  // ns

constexpr int kMeasureAllPairs = 16;

// One rank's measurements with another rank, or with all its partners.
struct PairFigures {
  std::uint64_t latency_ns = 0;
  std::uint64_t bytes_per_s = 0;
};

template <typename T>
std::span<std::byte> bytes_of(std::vector<T>& values) {
  return std::as_writable_bytes(std::span(values));
}

class Probe {
 public:
  explicit Probe(Channel& channel) : channel_(channel), memory_(channel.scratch(2 * kLastProbe)) {
    std::ranges::fill(memory_, std::byte{});
  }

  // In each round every rank has one partner at most, so that no link carries two measurements at a
  // time. In a large world each rank measures only with its neighbours in a hypercube: all pairs
  // would take as many rounds as there are ranks, and as many connections each.
  PairFigures run() {
    const int size = channel_.size(), places = size + size % 2;
    const bool all_pairs = size <= kMeasureAllPairs;
    const int rounds = all_pairs ? places - 1 : std::bit_width(static_cast<unsigned>(size - 1));
    for (int round = 0; round < rounds; ++round) {
      const int across = channel_.rank() ^ (1 << round);
      const auto partner = all_pairs       ? partner_in(round, places)
                           : across < size ? std::optional(across)
                                           : std::nullopt;
      if (partner) take_in(measure(*partner));
    }
    return figures_;
  }

 private:
  /// A rank's own link is as fast as the fastest of its pairs.
  void take_in(const PairFigures& pair) {
    figures_.latency_ns = std::max(figures_.latency_ns, pair.latency_ns);
    figures_.bytes_per_s = std::max(figures_.bytes_per_s, pair.bytes_per_s);
  }

  // By the circle method.
  std::optional<int> partner_in(int round, int places) const {
    const int turning = places - 1, rank = channel_.rank();
    int partner;
    if (rank == turning) {
      partner = round * (places / 2) % turning;  // the one that would meet itself
    } else {
      partner = ((round - rank) % turning + turning) % turning;
      if (partner == rank) partner = turning;
    }
    if (partner >= channel_.size()) return std::nullopt;
    return partner;
  }

  // Nanoseconds until the partner's message of the same length is here.
  std::uint64_t exchange(int partner, std::span<std::byte> out, std::span<std::byte> in) {
    const auto begun = Clock::now();
    const auto ticket = channel_.receive(partner, in);
    channel_.send(partner, out);
    channel_.wait(ticket);
    channel_.wait_sent();
    const auto span = std::chrono::nanoseconds(Clock::now() - begun);
    return std::max<std::uint64_t>(1, static_cast<std::uint64_t>(span.count()));
  }

  // Both sides' figures, so that both go on alike: the slower one counts.
  std::uint64_t agree(int partner, std::uint64_t own) {
    std::vector<std::uint64_t> mine{own}, theirs{0};
    exchange(partner, in_scratch(0, bytes_of(mine)), in_scratch(8, bytes_of(theirs)));
    std::memcpy(theirs.data(), memory_.data() + 8, 8);
    return std::max(own, theirs[0]);
  }

  std::span<std::byte> in_scratch(std::size_t at, std::span<std::byte> value) {
    const auto place = memory_.subspan(at, value.size());
    std::ranges::copy(value, place.begin());
    return place;
  }

  PairFigures measure(int partner) {
    PairFigures figures;
    std::uint64_t least = ~std::uint64_t{0};
    for (int i = 0; i < kShortExchanges; ++i) {
      least = std::min(least, exchange(partner, memory_.first(1), memory_.subspan(8, 1)));
    }
    figures.latency_ns = agree(partner, least);
    for (std::size_t bytes = kFirstProbe; bytes <= kLastProbe; bytes *= 4) {
      const auto span =
          agree(partner, exchange(partner, memory_.first(bytes), memory_.subspan(bytes, bytes)));
      const auto rate = static_cast<double>(bytes) * 1e9 / static_cast<double>(span);
      figures.bytes_per_s = std::max<std::uint64_t>(1, static_cast<std::uint64_t>(rate));
      if (span >= kLongEnough) break;
    }
    return figures;
  }

  Channel& channel_;
  const std::span<std::byte> memory_;
  PairFigures figures_;
};

Links links_from(const std::vector<std::vector<PairFigures>>& rows) {
  Links links;
  for (const auto& row : rows) {
    links.latency_s = std::max(links.latency_s, static_cast<double>(row[0].latency_ns) * 1e-9);
    links.bytes_per_s.push_back(
        static_cast<double>(std::max<std::uint64_t>(1, row[0].bytes_per_s)));
  }
  return links;
}

// Every rank's words on rank 0.
template <typename T>
std::vector<std::vector<T>> gather(Channel& channel, const std::vector<T>& own) {
  const auto bytes = std::as_bytes(std::span(own));
  const auto sent = channel.scratch(bytes.size());
  std::ranges::copy(bytes, sent.begin());
  std::vector<std::vector<T>> rows;
  MutableSegments segments;
  if (channel.rank() == 0) {
    for (int rank = 0; rank < channel.size(); ++rank)
      segments.push_back(channel.scratch(sent.size()));
  }
  direct_gather(channel, sent, segments, 0);
  for (const auto segment : segments) {
    std::memcpy(rows.emplace_back(own.size()).data(), segment.data(), segment.size());
  }
  return rows;
}

// Rank 0's words on every rank.
std::vector<std::uint64_t> spread(Channel& channel, std::vector<std::uint64_t> words) {
  const auto bytes = channel.scratch(words.size() * sizeof(std::uint64_t));
  std::memcpy(bytes.data(), words.data(), bytes.size());
  tree_broadcast(channel, bytes, 0);
  std::memcpy(words.data(), bytes.data(), bytes.size());
  return words;
}

}  // namespace

// Every rank comes to the same answer: from the call, from the plan that rank 0 has made for all,
// and from whether there is one, which depends on the calls before.
Algorithm AllReducer::choose(Channel& channel, std::size_t bytes) {
  if (islands_ && (asked_ == Algorithm::automatic || asked_ == Algorithm::two_level)) {
    return choose_with_islands(channel, bytes);
  }
  if (asked_ != Algorithm::automatic && asked_ != Algorithm::weighted) return asked_;
  const bool measures = asked_ == Algorithm::weighted || bytes > kWorthMeasuring;
  // Two ranks have one link between them: there is nothing to choose by.
  if (!plan_ && channel.size() > 2 && measures) {
    std::vector<int> everyone(static_cast<std::size_t>(channel.size()));
    std::iota(everyone.begin(), everyone.end(), 0);
    plan_ = agree_on_plan(channel, leaves_host_, everyone);
    log(LogLevel::info,
        "all_reduce over {} ranks: recursive doubling up to {} bytes, halving and doubling up to "
        "{}, {} for longer messages",
        channel.size(), plan_->short_bytes, plan_->middle_bytes,
        to_string(plan_->choose(~std::size_t{0})));
  }
  if (asked_ == Algorithm::weighted) return asked_;
  const auto chosen = (plan_ ? *plan_ : plan_for_one_host(channel.size())).choose(bytes);
  // Several ranks behind one host's link: inside first, if nothing better is known.
  const bool shared = hosts_.size() > 1 && hosts_.size() < static_cast<std::size_t>(channel.size());
  return shared && chosen == Algorithm::ring ? Algorithm::two_level : chosen;
}

// One rank of each island measures; two have one link between them.
Algorithm AllReducer::choose_with_islands(Channel& channel, std::size_t bytes) {
  const bool is_short = bytes <= plan_for_one_host(channel.size()).short_bytes;
  if (asked_ == Algorithm::automatic && is_short) return Algorithm::recursive_doubling;
  if (!plan_ && islands_->ranks.size() > 2 && bytes > kWorthMeasuring) {
    const auto first = first_ranks(islands_->ranks);
    plan_ = agree_on_plan(channel, leaves_host_, first);
    log(LogLevel::info, "all_reduce over {} ranks on {} islands: {} links between these",
        channel.size(), first.size(), plan_->weights.empty() ? "equal" : "unequal");
  }
  return Algorithm::two_level;
}

// As planned, or all alike.
std::vector<std::uint32_t> AllReducer::weights(std::size_t number) const {
  if (plan_ && !plan_->weights.empty()) return plan_->weights;
  return std::vector<std::uint32_t>(number, 1);
}

void AllReducer::run_two_level(Channel& channel, std::span<std::byte> data,
                               const Reduction& reduction) const {
  if (!islands_) return two_level_all_reduce(channel, data, hosts_, reduction);
  islands_all_reduce(channel, data, *islands_, weights(islands_->ranks.size()), reduction);
}

void AllReducer::run(Channel& channel, std::span<std::byte> data, const Reduction& reduction) {
  const auto chosen = choose(channel, data.size());
  channel.note_algorithm(to_string(chosen).data());  // a literal
  switch (chosen) {
    case Algorithm::recursive_doubling:
      recursive_doubling_all_reduce(channel, data, reduction.dtype, reduction.op);
      return reduction.finish(data);
    case Algorithm::halving_doubling: return halving_doubling_all_reduce(channel, data, reduction);
    case Algorithm::tree: return tree_all_reduce(channel, data, reduction);
    case Algorithm::two_level: return run_two_level(channel, data, reduction);
    case Algorithm::weighted:
      return weighted_all_reduce(channel, data, weights(static_cast<std::size_t>(channel.size())),
                                 reduction);
    case Algorithm::automatic:
    case Algorithm::ring: break;
  }
  ring_all_reduce(channel, even_segments(data, channel.size(), reduction.dtype), reduction);
}

LinkPlan agree_on_plan(Channel& channel, bool leaves_host, const std::vector<int>& measuring) {
  const auto flags = gather<std::uint64_t>(channel, {leaves_host ? 1u : 0u});
  const bool any = std::ranges::any_of(flags, [](const auto& row) { return row[0] != 0; });
  if (spread(channel, {any ? 1u : 0u})[0] == 0) {
    return plan_for_one_host(static_cast<int>(measuring.size()));
  }
  std::vector<std::vector<PairFigures>> rows;
  if (std::ranges::find(measuring, channel.rank()) != measuring.end()) {
    Channel between = channel.among(measuring);
    rows = gather<PairFigures>(between, {Probe(between).run()});
  }
  std::vector<std::uint64_t> words(2 + measuring.size(), 0);
  if (channel.rank() == 0) {
    const auto plan = plan_for(links_from(rows));
    words[0] = plan.short_bytes;
    words[1] = plan.middle_bytes;
    std::ranges::copy(plan.weights, words.begin() + 2);
  }
  words = spread(channel, words);
  LinkPlan plan{words[0], words[1]};
  const std::span weights(words.begin() + 2, words.end());
  // All 0 stands for none.
  if (std::ranges::any_of(weights, [](std::uint64_t weight) { return weight != 0; })) {
    for (const auto weight : weights) plan.weights.push_back(static_cast<std::uint32_t>(weight));
  }
  return plan;
}

}  // namespace bimetal::comm
