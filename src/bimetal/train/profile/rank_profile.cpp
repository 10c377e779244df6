#include "bimetal/train/profile/rank_profile.h"

#include <algorithm>
#include <utility>

#include "bimetal/base/wire.h"

namespace bimetal::train {
namespace {

constexpr std::size_t kMarked = 6;  ///< phases that have marks: the first ones
constexpr std::size_t kOther = 6, kExchange = 7;

std::array<double, kPhases.size()> seconds_of_phases(const RankTrace& rank, double all) {
  auto times = phase_times(rank.events);
  std::array<double, kPhases.size()> seconds{};
  double marked = 0;
  for (std::size_t i = 0; i < kMarked; ++i) {
    seconds[i] = static_cast<double>(times[kPhases[i]]) * kNanosecond;
    marked += seconds[i];
  }
  seconds[kOther] = std::max(0.0, all - marked);
  std::vector<Interval> busy;
  for (const auto& call : rank.calls) busy.push_back({call.begin_ns, call.end_ns});
  seconds[kExchange] = static_cast<double>(covered(std::move(busy))) * kNanosecond;
  return seconds;
}

}  // namespace

RankProfile summarize(const RankTrace& rank, double seconds) {
  return {.seconds = seconds,
          .phases = seconds_of_phases(rank, seconds),
          .operations = add_up(rank.events),
          .trace = trace_events(rank)};
}

comm::Bytes encode(const RankProfile& profile) {
  WireWriter writer;
  writer.f64(profile.seconds);
  for (const auto seconds : profile.phases) writer.f64(seconds);
  for (const auto& row : profile.operations) {
    writer.u8(1);
    writer.string(row.name);
    writer.i64(row.calls);
    writer.f64(row.self_s);
    writer.f64(row.total_s);
    writer.f64(row.device_s);
    writer.i64(row.bytes);
  }
  writer.u8(0);
  writer.raw(std::as_bytes(std::span(profile.trace)));
  return std::move(writer).take();
}

RankProfile decode(std::span<const std::byte> bytes) {
  WireReader reader(bytes);
  RankProfile profile;
  profile.seconds = reader.f64();
  for (auto& seconds : profile.phases) seconds = reader.f64();
  while (reader.u8() != 0) {
    auto& row = profile.operations.emplace_back();
    row.name = reader.string();
    row.calls = reader.i64();
    row.self_s = reader.f64();
    row.total_s = reader.f64();
    row.device_s = reader.f64();
    row.bytes = reader.i64();
  }
  const auto trace = reader.raw(reader.remaining());
  profile.trace.assign(reinterpret_cast<const char*>(trace.data()), trace.size());
  return profile;
}

void add_to(Profile& profile, const RankProfile& rank) {
  ++profile.ranks;
  profile.seconds += rank.seconds;
  profile.phases.resize(kPhases.size());
  for (std::size_t i = 0; i < kPhases.size(); ++i) {
    profile.phases[i].name = kPhases[i];
    profile.phases[i].seconds += rank.phases[i];
  }
  merge(profile.operations, rank.operations);
}

}  // namespace bimetal::train
