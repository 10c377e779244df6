#include "bimetal/progress/worker_summary.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "bimetal/base/error.h"
#include "bimetal/comm/exchange.h"

namespace bimetal::progress {
namespace {

// The flags' bits, a rank's number in the next twenty, as many for steps, and one more flag: below
// 2^53.
constexpr unsigned kDismissBit = 4, kProfileBit = 24, kTellBit = 44;

double encode(const Wishes& wishes) {
  const std::uint64_t flags =
      wishes.stop + 2U * wishes.save + 4U * wishes.leave + 8U * wishes.change;
  const auto who = static_cast<std::uint64_t>(wishes.dismiss + 1) << kDismissBit;
  const auto steps = static_cast<std::uint64_t>(wishes.profile) << kProfileBit;
  const auto tell = static_cast<std::uint64_t>(wishes.tell) << kTellBit;
  return static_cast<double>(flags | who | steps | tell);
}

Wishes decode_wishes(double number) {
  const auto bits = static_cast<std::uint64_t>(number);
  constexpr std::uint64_t kTwenty = (1U << (kProfileBit - kDismissBit)) - 1;
  const std::uint64_t who = (bits >> kDismissBit) & kTwenty;
  return {.stop = (bits & 1) != 0,
          .save = (bits & 2) != 0,
          .leave = (bits & 4) != 0,
          .change = (bits & 8) != 0,
          .dismiss = static_cast<int>(who) - 1,
          .profile = static_cast<int>((bits >> kProfileBit) & kTwenty),
          .tell = (bits >> kTellBit) != 0};
}

// Every figure travels as a float64: exact for counts up to 2^53, and one array for the fabric.
RankFigures decode(std::span<const double> numbers) {
  return {.batch = static_cast<std::int64_t>(numbers[0]),
          .compute_seconds = numbers[1],
          .sum_seconds = numbers[11],
          .loss_sum = numbers[2],
          .fit = static_cast<Fit>(static_cast<std::uint8_t>(numbers[3])),
          .wishes = decode_wishes(numbers[4]),
          .gradient_norm = numbers[5],
          .communicate_seconds = numbers[6],
          .wait_seconds = numbers[7],
          .bytes_sent = static_cast<std::uint64_t>(numbers[8]),
          .memory_bytes = numbers[12],
          .shadow = {.batch = static_cast<std::int64_t>(numbers[9]), .seconds = numbers[10]}};
}

}  // namespace

Wishes& Wishes::operator|=(const Wishes& other) {
  stop |= other.stop;
  save |= other.save;
  leave &= other.leave;  // together or not: one that leaves alone says so by `dismiss`
  change |= other.change;
  dismiss = std::max(dismiss, other.dismiss);
  profile = std::max(profile, other.profile);
  tell |= other.tell;
  return *this;
}

FigureExchange::FigureExchange(comm::Group group)
    : group_(std::move(group)),
      buffers_(std::make_shared<Buffers>()),
      figures_(static_cast<std::size_t>(group_.size())) {
  buffers_->gathered.resize(kNumbers * figures_.size());
}

void FigureExchange::start(const RankFigures& mine, Deadline deadline) {
  auto& [own, gathered] = *buffers_;
  own = {static_cast<double>(mine.batch),
         mine.compute_seconds,
         mine.loss_sum,
         static_cast<double>(mine.fit),
         encode(mine.wishes),
         mine.gradient_norm,
         mine.communicate_seconds,
         mine.wait_seconds,
         static_cast<double>(mine.bytes_sent),
         static_cast<double>(mine.shadow.batch),
         mine.shadow.seconds,
         mine.sum_seconds,
         mine.memory_bytes};
  work_ = group_.all_gather(comm::buffer(std::span<const double>(own)),
                            comm::buffer(std::span<double>(gathered)), deadline);
  // A thread that unwinds in the middle of a step does not wait for it.
  work_.on_done([kept = buffers_](const std::exception_ptr&) {});
}

std::span<const RankFigures> FigureExchange::wait() {
  work_.wait();
  return decode_all();
}

std::span<const RankFigures> FigureExchange::take(std::span<const double> numbers) {
  if (numbers.size() != buffers_->gathered.size()) {
    throw Error(ErrorCode::InvalidArgument, "the figures of a step are of another number of ranks");
  }
  std::ranges::copy(numbers, buffers_->gathered.begin());
  return decode_all();
}

std::span<const RankFigures> FigureExchange::decode_all() {
  for (std::size_t rank = 0; rank < figures_.size(); ++rank) {
    figures_[rank] = decode(std::span(buffers_->gathered).subspan(rank * kNumbers, kNumbers));
  }
  return figures_;
}

std::vector<WorkerSummary> gather_summaries(comm::Group group, const WorkerSummary& mine,
                                            std::chrono::milliseconds timeout) {
  return comm::all_gather_fields(
      std::move(group), mine, Deadline::after(timeout), [](auto& wire, WorkerSummary& summary) {
        wire(summary.host, summary.device, summary.elapsed_seconds, summary.communicate_seconds,
             summary.wait_seconds, summary.bytes_sent);
      });
}

}  // namespace bimetal::progress
