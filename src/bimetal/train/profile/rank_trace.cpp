#include "bimetal/train/profile/rank_trace.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "bimetal/base/json_string.h"
#include "bimetal/parallel/marked_wait.h"

namespace bimetal::train {
namespace {

using Kind = ProfiledEvent::Kind;

/// Rows of waits, of the fabric's calls and of kernels lie below those of threads.
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

}  // namespace bimetal::train
