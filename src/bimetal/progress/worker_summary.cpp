#include "bimetal/progress/worker_summary.h"

#include <algorithm>
#include <utility>

#include "bimetal/base/error.h"
#include "bimetal/base/wire.h"
#include "bimetal/comm/exchange.h"

namespace bimetal::progress {
namespace {

double encode(const Wishes& wishes) {
  return wishes.stop + 2 * wishes.save + 4 * wishes.leave + 8 * wishes.change;
}

Wishes decode_wishes(double number) {
  const auto bits = static_cast<unsigned>(number);
  return {(bits & 1) != 0, (bits & 2) != 0, (bits & 4) != 0, (bits & 8) != 0};
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
          .shadow = {.batch = static_cast<std::int64_t>(numbers[9]), .seconds = numbers[10]}};
}

}  // namespace

Wishes& Wishes::operator|=(const Wishes& other) {
  stop |= other.stop;
  save |= other.save;
  leave |= other.leave;
  change |= other.change;
  return *this;
}

FigureExchange::FigureExchange(comm::Group group)
    : group_(std::move(group)),
      gathered_(kNumbers * static_cast<std::size_t>(group_.size())),
      figures_(static_cast<std::size_t>(group_.size())) {}

void FigureExchange::start(const RankFigures& mine, Deadline deadline) {
  mine_ = {static_cast<double>(mine.batch),
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
           mine.sum_seconds};
  work_ = group_.all_gather(comm::buffer(std::span<const double>(mine_)),
                            comm::buffer(std::span<double>(gathered_)), deadline);
}

std::span<const RankFigures> FigureExchange::wait() {
  work_.wait();
  return decode_all();
}

std::span<const RankFigures> FigureExchange::take(std::span<const double> numbers) {
  if (numbers.size() != gathered_.size()) {
    throw Error(ErrorCode::InvalidArgument, "the figures of a step are of another number of ranks");
  }
  std::ranges::copy(numbers, gathered_.begin());
  return decode_all();
}

std::span<const RankFigures> FigureExchange::decode_all() {
  for (std::size_t rank = 0; rank < figures_.size(); ++rank) {
    figures_[rank] = decode(std::span(gathered_).subspan(rank * kNumbers, kNumbers));
  }
  return figures_;
}

namespace {

comm::Bytes encode_summary(const WorkerSummary& summary) {
  WireWriter writer;
  writer.string(summary.host);
  writer.string(summary.device);
  writer.f64(summary.elapsed_seconds);
  writer.f64(summary.communicate_seconds);
  writer.f64(summary.wait_seconds);
  writer.u64(summary.bytes_sent);
  return std::move(writer).take();
}

WorkerSummary decode_summary(const comm::Bytes& bytes) {
  WireReader reader(bytes);
  WorkerSummary summary;
  summary.host = reader.string();
  summary.device = reader.string();
  summary.elapsed_seconds = reader.f64();
  summary.communicate_seconds = reader.f64();
  summary.wait_seconds = reader.f64();
  summary.bytes_sent = reader.u64();
  reader.expect_end();
  return summary;
}

}  // namespace

std::vector<WorkerSummary> gather_summaries(comm::Group group, const WorkerSummary& mine,
                                            std::chrono::milliseconds timeout) {
  std::vector<WorkerSummary> summaries;
  for (const auto& bytes :
       comm::all_gather_bytes(group, encode_summary(mine), Deadline::after(timeout))) {
    summaries.push_back(decode_summary(bytes));
  }
  return summaries;
}

}  // namespace bimetal::progress
