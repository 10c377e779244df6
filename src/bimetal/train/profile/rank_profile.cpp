#include "bimetal/train/profile/rank_profile.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <string_view>
#include <utility>

#include "bimetal/base/json.h"
#include "bimetal/base/wire_fields.h"
#include "bimetal/parallel/parameter_store.h"

namespace bimetal::train {

namespace {

constexpr int kQuestions = 24;

// Messages are matched by (peer, tag): no other call of this library uses these two.
constexpr std::uint64_t kQuestion = 0x636c6f636b01, kAnswer = 0x636c6f636b02;

comm::Buffer one(std::int64_t& value) {
  return comm::buffer(std::span(&value, 1));
}

void answer(comm::Group& group, Deadline deadline, const std::function<std::int64_t()>& now) {
  for (int i = 0; i < kQuestions; ++i) {
    std::int64_t time = 0;
    group.recv(one(time), 0, kQuestion, deadline).wait();
    time = now();
    group.send(one(time), 0, kAnswer, deadline).wait();
  }
}

ClockOffset ask(comm::Group& group, int rank, Deadline deadline,
                const std::function<std::int64_t()>& now) {
  ClockOffset best{.error_ns = std::numeric_limits<std::int64_t>::max()};
  for (int i = 0; i < kQuestions; ++i) {
    std::int64_t asked = now(), theirs = 0;
    group.send(one(asked), rank, kQuestion, deadline).wait();
    group.recv(one(theirs), rank, kAnswer, deadline).wait();
    const auto half = (now() - asked + 1) / 2;
    if (half < best.error_ns) best = {.ns = theirs - (asked + half), .error_ns = half};
  }
  return best;
}

}  // namespace

std::int64_t wall_clock_ns() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
}

std::vector<ClockOffset> clock_offsets(comm::Group group, Deadline deadline,
                                       const std::function<std::int64_t()>& now) {
  const auto size = static_cast<std::size_t>(group.size());
  std::vector<std::int64_t> numbers(2 * size);
  if (group.rank() != 0) answer(group, deadline, now);
  if (group.rank() == 0) {
    for (std::size_t rank = 1; rank < size; ++rank) {
      const auto offset = ask(group, static_cast<int>(rank), deadline, now);
      numbers[2 * rank] = offset.ns;
      numbers[2 * rank + 1] = offset.error_ns;
    }
  }
  group.broadcast(comm::buffer(std::span(numbers)), 0, deadline).wait();
  std::vector<ClockOffset> offsets(size);
  for (std::size_t rank = 0; rank < size; ++rank) {
    offsets[rank] = {.ns = numbers[2 * rank], .error_ns = numbers[2 * rank + 1]};
  }
  return offsets;
}

namespace {

using Kind = ProfiledEvent::Kind;

/// Rows of waits, of the fabric's calls and of kernels are below those of threads.
constexpr int kWaitRow = 900, kFabricRow = 1000, kDeviceRow = 2000;

class Writer {
 public:
  explicit Writer(const RankTrace& rank) : rank_(rank) {}

  void name_process() {
    add(fmt::format(R"({{"ph":"M","name":"process_name","pid":{},"args":{{"name":{}}}}})",
                    rank_.rank, json_string(fmt::format("rank {}: {}", rank_.rank, rank_.place))));
  }

  void name_row(int row, const std::string& name) {
    add(fmt::format(R"({{"ph":"M","name":"thread_name","pid":{},"tid":{},"args":{{"name":{}}}}})",
                    rank_.rank, row, json_string(name)));
  }

  void event(std::string_view name, std::string_view category, int row, Interval when,
             std::string_view arguments = "{}") {
    add(fmt::format(
        R"({{"ph":"X","name":{},"cat":"{}","pid":{},"tid":{},"ts":{:.3f},"dur":{:.3f},"args":{}}})",
        json_string(name), category, rank_.rank, row,
        1e-3 * static_cast<double>(when.begin_ns - rank_.clock_ahead_ns - rank_.start_ns),
        1e-3 * static_cast<double>(when.end_ns - when.begin_ns), arguments));
  }

  std::string take() { return std::move(text_); }

 private:
  void add(const std::string& object) {
    if (!text_.empty()) text_ += ",\n";
    text_ += object;
  }

  const RankTrace& rank_;
  std::string text_;
};

bool is_wait(const ProfiledEvent& event) {
  return event.kind == Kind::mark && event.name.starts_with(parallel::kWaitingFor);
}

const char* category_of(const ProfiledEvent& event) {
  if (is_wait(event)) return "wait";
  if (event.kind == Kind::kernel) return "kernel";
  return event.kind == Kind::mark ? "phase" : "operation";
}

void write_events(const RankTrace& rank, Writer& writer) {
  std::map<std::uint64_t, int> rows;
  bool waits = false;
  for (const auto& event : rank.events) {
    if (event.kind == Kind::memory) continue;
    int row = kDeviceRow;
    if (is_wait(event)) {
      row = kWaitRow;
      waits = true;
    } else if (event.kind != Kind::kernel) {
      row = rows.emplace(event.thread, static_cast<int>(rows.size())).first->second;
    }
    writer.event(event.name, category_of(event), row, {event.begin_ns, event.end_ns});
  }
  if (waits) writer.name_row(kWaitRow, "waits");
  for (const auto& [thread, row] : rows) writer.name_row(row, fmt::format("thread {}", row));
}

/// Calls that overlap get rows of their own, so that none hides another.
void write_calls(const RankTrace& rank, Writer& writer) {
  std::vector<std::int64_t> busy_until;
  for (const auto& call : rank.calls) {
    const auto free = std::ranges::find_if(
        busy_until, [&](std::int64_t until) { return until <= call.begin_ns; });
    const auto lane = static_cast<int>(free - busy_until.begin());
    if (free == busy_until.end()) {
      busy_until.push_back(call.end_ns);
    } else {
      *free = call.end_ns;
    }
    writer.event(call.name, "fabric", kFabricRow + lane, {call.begin_ns, call.end_ns},
                 fmt::format(R"({{"call":{}}})", json_string(call.detail)));
  }
  for (std::size_t lane = 0; lane < busy_until.size(); ++lane) {
    writer.name_row(kFabricRow + static_cast<int>(lane), fmt::format("fabric {}", lane));
  }
}

FabricCall call_of(const nlohmann::json& entry) {
  constexpr std::string_view prefix = "bimetal:";
  const auto& algorithm = entry.at("algorithm");
  return {.name = entry.at("profiling_name").get<std::string>().substr(prefix.size()),
          .detail = fmt::format("{} {}{}", entry.at("input_sizes").at(0).at(0).get<std::int64_t>(),
                                entry.at("input_dtypes").at(0).get<std::string>(),
                                algorithm.is_null() ? "" : ", " + algorithm.get<std::string>()),
          .begin_ns = entry.at("time_discovered_started_ns").get<std::int64_t>(),
          .end_ns = entry.at("time_discovered_completed_ns").get<std::int64_t>()};
}

}  // namespace

std::vector<FabricCall> FabricCalls::take(const std::string& flight_recorder) {
  std::vector<FabricCall> calls;
  const auto parsed =
      nlohmann::json::parse(flight_recorder);  // outlives the loop over a part of it
  for (const auto& entry : parsed.at("entries")) {
    const auto record = entry.at("record_id").get<std::int64_t>();
    const bool over = !entry.at("time_discovered_started_ns").is_null() &&
                      !entry.at("time_discovered_completed_ns").is_null();
    if (record < next_ || !over || !taken_.insert(record).second) continue;
    calls.push_back(call_of(entry));
  }
  while (taken_.erase(next_) > 0) ++next_;
  std::ranges::sort(calls, {}, &FabricCall::begin_ns);
  return calls;
}

std::string trace_events(const RankTrace& rank) {
  Writer writer(rank);
  writer.name_process();
  write_events(rank, writer);
  write_calls(rank, writer);
  return writer.take();
}

std::string trace_file(const std::vector<std::string>& events_of_ranks) {
  return fmt::format("{{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n{}\n]}}\n",
                     fmt::join(events_of_ranks, ",\n"));
}

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

/// In the form of StageCompute's marks: "backward of micro-batch 3".
int micro_batch_in(const std::string& mark) {
  constexpr std::string_view kOf = " of micro-batch ";
  const auto at = mark.find(kOf);
  return at == mark.npos ? -1 : std::atoi(mark.c_str() + at + kOf.size());
}

/// Phases do not nest; within one may be the mark of its micro-batch.
std::vector<progress::StepSpan> spans_of_last_step(const RankTrace& rank) {
  constexpr std::string_view kPrefix = "bimetal::";
  const auto since = rank.last_step_ns + rank.clock_ahead_ns;  // by this rank's clock
  std::vector<const ProfiledEvent*> marks;
  for (const auto& event : rank.events) {
    if (event.kind == Kind::mark && event.end_ns > since) marks.push_back(&event);
  }
  std::ranges::stable_sort(marks, {}, [](const ProfiledEvent* mark) {
    return std::pair(mark->begin_ns, -mark->end_ns);  // a phase before its contents
  });
  std::vector<progress::StepSpan> spans;
  std::int64_t phase_ends = 0;
  for (const auto* mark : marks) {
    const auto name = std::string_view(mark->name);
    const auto phase =
        std::ranges::find(kPhases, name.starts_with(kPrefix) ? name.substr(kPrefix.size()) : "");
    if (phase != kPhases.end() && spans.size() < RankProfile::kMostSpans) {
      const auto seconds = [since](std::int64_t ns) {
        return std::max(0.0, static_cast<double>(ns - since) * kNanosecond);
      };
      spans.push_back({.phase = static_cast<int>(phase - kPhases.begin()),
                       .begin_s = seconds(mark->begin_ns),
                       .end_s = seconds(mark->end_ns)});
      phase_ends = mark->end_ns;
    } else if (!spans.empty() && mark->end_ns <= phase_ends && micro_batch_in(mark->name) >= 0) {
      spans.back().micro_batch = micro_batch_in(mark->name);
    }
  }
  return spans;
}

}  // namespace

RankProfile summarize(const RankTrace& rank, double seconds) {
  return {.seconds = seconds,
          .phases = seconds_of_phases(rank, seconds),
          .operations = add_up(rank.events),
          .trace = trace_events(rank),
          .spans = spans_of_last_step(rank)};
}

namespace {

template <typename Wire>
void fields(Wire& wire, RankProfile& profile) {
  wire(profile.seconds);
  for (auto& seconds : profile.phases) wire(seconds);
  wire.each(profile.operations, [&](Operation& row) {
    wire(row.name, row.calls, row.self_s, row.total_s, row.device_s, row.bytes);
  });
  wire(profile.trace);
  wire.each(profile.spans, [&](progress::StepSpan& span) {
    wire(span.phase, span.micro_batch, span.begin_s, span.end_s);
  });
}

}  // namespace

comm::Bytes encode(RankProfile profile) {
  FieldWriter out;
  fields(out, profile);
  return std::move(out).take();
}

RankProfile decode(std::span<const std::byte> bytes) {
  FieldReader in(bytes);
  RankProfile profile;
  fields(in, profile);
  in.expect_end();
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
  profile.seconds_of.emplace_back(rank.phases.begin(), rank.phases.end());
  profile.spans.push_back(rank.spans);
  merge(profile.operations, rank.operations);
}

}  // namespace bimetal::train
