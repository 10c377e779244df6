#include "bimetal/comm/group/flight_recorder.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <chrono>
#include <map>
#include <utility>

#include "bimetal/base/files.h"
#include "bimetal/base/json.h"
#include "bimetal/base/log.h"
#include "bimetal/base/unicode/utf8.h"

namespace bimetal::comm {
namespace {

// The layout of c10d's dumps that the names are taken from.
constexpr const char* kVersion = "2.10";

std::int64_t now_ns() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
}

std::uint64_t elements(const Call& call, const std::vector<std::size_t>& each) {
  if (each.empty()) return call.count;
  std::uint64_t sum = 0;
  for (const std::size_t count : each) sum += count;
  return sum;
}

std::string time_or_null(std::int64_t ns) {
  return ns == 0 ? "null" : std::to_string(ns);
}

const char* description_of(std::uint32_t group) {
  return group == 0 ? "world" : "subgroup";
}

const char* state_of(std::int64_t started_ns, std::int64_t completed_ns, bool failed) {
  if (completed_ns != 0 && !failed) return "completed";
  return started_ns != 0 ? "started" : "scheduled";
}

}  // namespace

FlightRecorder::FlightRecorder(int rank, int size, std::filesystem::path file)
    : rank_(rank), size_(size), file_(std::move(file)), ring_(kEntries) {}

FlightRecorder::Id FlightRecorder::created(std::uint32_t group, int members, const Call& call,
                                           std::chrono::nanoseconds timeout) {
  Entry entry;
  entry.group = group;
  entry.members = members;
  entry.call = call;
  entry.timeout_ms = std::chrono::duration_cast<std::chrono::milliseconds>(timeout).count();
  entry.created_ns = now_ns();
  std::lock_guard lock(mutex_);
  entry.id = ++last_id_;
  ring_[entry.id % kEntries] = std::move(entry);
  return last_id_;
}

void FlightRecorder::passed(std::uint32_t group, int members, const Call& call,
                            const char* algorithm) {
  Entry entry;
  entry.group = group;
  entry.members = members;
  entry.call = call;
  entry.algorithm = algorithm;
  entry.created_ns = entry.started_ns = entry.completed_ns = now_ns();
  std::lock_guard lock(mutex_);
  entry.id = ++last_id_;
  ring_[entry.id % kEntries] = std::move(entry);
}

FlightRecorder::Entry* FlightRecorder::find(Id id) {
  Entry& entry = ring_[id % kEntries];
  return id != 0 && entry.id == id ? &entry : nullptr;
}

void FlightRecorder::started(Id id) {
  const std::int64_t now = now_ns();
  std::lock_guard lock(mutex_);
  if (Entry* const entry = find(id)) entry->started_ns = now;
}

void FlightRecorder::chose(Id id, const char* algorithm) {
  std::lock_guard lock(mutex_);
  if (Entry* const entry = find(id)) entry->algorithm = algorithm;
}

void FlightRecorder::waits_for(Id id, const std::set<int>& peers) {
  std::lock_guard lock(mutex_);
  if (Entry* const entry = find(id)) entry->waits_for = peers;
}

void FlightRecorder::completed(Id id, const std::optional<Failure>& failure) {
  const std::int64_t now = now_ns();
  std::lock_guard lock(mutex_);
  Entry* const entry = find(id);
  if (!entry) return;
  entry->completed_ns = now;
  entry->failure = failure;
}

std::string FlightRecorder::json() const {
  std::string entries;
  std::map<std::uint32_t, int> groups;
  std::lock_guard lock(mutex_);
  const Id first = last_id_ < kEntries ? 1 : last_id_ - kEntries + 1;
  for (Id id = first; id <= last_id_; ++id) {
    const Entry& entry = ring_[id % kEntries];
    groups[entry.group] = entry.members;
    entries += (id == first ? "\n  " : ",\n  ") + entry.json();
  }
  std::string pg_config;
  for (const auto& [group, members] : groups) {
    pg_config +=
        fmt::format(R"({}"{}": {{"name": "{}", "desc": "{}", "size": {}}})",
                    pg_config.empty() ? "" : ", ", group, group, description_of(group), members);
  }
  return fmt::format(
      "{{\n"
      R"( "version": "{}", "comm_lib_version": "bimetal", "rank": {}, "world_size": {},)"
      "\n"
      R"( "pg_config": {{{}}},)"
      "\n"
      R"( "entries": [{}])"
      "\n}}\n",
      kVersion, rank_, size_, pg_config, entries);
}

std::string FlightRecorder::Entry::json() const {
  const bool p2p = call.point_to_point();
  const auto dtype = to_string(call.dtype);
  const bool timed = started_ns != 0 && completed_ns != 0;
  std::string text = fmt::format(
      R"({{"record_id": {}, "pg_id": {}, "process_group": ["{}", "{}"], "collective_seq_id": {}, )"
      R"("p2p_seq_id": {}, "op_id": {}, "is_p2p": {}, "profiling_name": "bimetal:{}", )",
      id - 1, group, group, description_of(group), p2p ? 0 : call.sequence, p2p ? call.sequence : 0,
      id, p2p, to_string(call.operation));
  text += fmt::format(
      R"("input_sizes": [[{}]], "input_dtypes": ["{}"], "output_sizes": [[{}]], )"
      R"("output_dtypes": ["{}"], "time_created_ns": {}, "time_discovered_started_ns": {}, )"
      R"("time_discovered_completed_ns": {}, "duration_ms": {}, "timeout_ms": {}, "state": "{}", )"
      R"("retired": {}, )",
      elements(call, call.send_counts), dtype, elements(call, call.recv_counts), dtype, created_ns,
      time_or_null(started_ns), time_or_null(completed_ns),
      timed ? fmt::format("{:.6f}", static_cast<double>(completed_ns - started_ns) / 1e6) : "null",
      timeout_ms, state_of(started_ns, completed_ns, failure.has_value()), completed_ns != 0);
  // Fields that PyTorch's recorder has no name for:
  text += fmt::format(
      R"("epoch": {}, "root": {}, "reduce_op": {}, "algorithm": {}, "waiting_for": [{}], "error": )",
      call.epoch, call.root, call.reduce_op ? json_string(to_string(*call.reduce_op)) : "null",
      algorithm ? json_string(algorithm) : "null", fmt::join(waits_for, ", "));
  if (!failure) return text + "null}";
  return text + fmt::format(R"({{"code": "{}", "rank": {}, "message": {}}}}})",
                            bimetal::to_string(failure->code),
                            failure->rank ? std::to_string(*failure->rank) : "null",
                            json_string(failure->message));
}

void FlightRecorder::write() noexcept {
  if (file_.empty()) return;
  std::lock_guard lock(write_mutex_);
  if (std::exchange(written_, true)) return;
  try {
    write_file_atomically(file_, json());
    log(LogLevel::info, "rank {}: the last calls have been written to {}", rank_,
        utf8_of_path(file_));
  } catch (const std::exception& error) {
    log(LogLevel::warning, "rank {}: the flight recorder's dump was not written: {}", rank_,
        error.what());
  }
}

std::filesystem::path FlightRecorder::file_for(const std::string& place, int rank,
                                               std::uint32_t epoch) {
  if (place.empty()) return {};
  const auto path = path_of_utf8(place);
  const auto life = epoch == 0 ? std::string() : fmt::format("_epoch_{}", epoch);
  const auto suffix = fmt::format("{}_rank_{}", life, rank);
  std::error_code ignored;
  if (!path.has_filename() || std::filesystem::is_directory(path, ignored)) {
    return path / ("flight" + suffix + ".json");
  }
  auto name = path.stem();
  name += suffix;
  name += path.extension();
  return path.parent_path() / name;
}

}  // namespace bimetal::comm
