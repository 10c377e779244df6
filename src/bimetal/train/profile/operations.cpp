#include "bimetal/train/profile/operations.h"

#include <algorithm>
#include <string_view>
#include <unordered_map>
#include <utility>

namespace bimetal::train {
namespace {

using Kind = ProfiledEvent::Kind;

double seconds_of(const ProfiledEvent& event) {
  return static_cast<double>(event.end_ns - event.begin_ns) * kNanosecond;
}

// An event that contains another comes first.
bool before(const ProfiledEvent& a, const ProfiledEvent& b) {
  if (a.thread != b.thread) return a.thread < b.thread;
  if (a.begin_ns != b.begin_ns) return a.begin_ns < b.begin_ns;
  return a.end_ns > b.end_ns;
}

class Sums {
 public:
  Operation& of(const std::string& name) {
    const auto [place, fresh] = places_.emplace(name, rows_.size());
    if (fresh) rows_.push_back({.name = name});
    return rows_[place->second];
  }
  std::vector<Operation> take() { return std::move(rows_); }

 private:
  std::vector<Operation> rows_;
  std::unordered_map<std::string, std::size_t> places_;
};

void add_kernel(const ProfiledEvent& event, Sums& sums) {
  auto& row = sums.of(event.name);
  ++row.calls;
  row.device_s += seconds_of(event);
}

void add_operation(const ProfiledEvent& event, const ProfiledEvent* parent, Sums& sums) {
  const auto seconds = seconds_of(event);
  auto& row = sums.of(event.name);
  ++row.calls;
  row.self_s += seconds;
  row.total_s += seconds;
  if (parent && parent->kind == Kind::operation) sums.of(parent->name).self_s -= seconds;
}

}  // namespace

std::vector<Operation> add_up(std::vector<ProfiledEvent> events) {
  std::ranges::stable_sort(events, before);
  Sums sums;
  std::vector<const ProfiledEvent*> open;
  for (const auto& event : events) {
    if (event.kind == Kind::kernel) {
      add_kernel(event, sums);
      continue;
    }
    while (!open.empty() &&
           (open.back()->thread != event.thread || open.back()->end_ns < event.end_ns)) {
      open.pop_back();
    }
    const auto* const parent = open.empty() ? nullptr : open.back();
    if (event.kind == Kind::memory) {
      if (parent && parent->kind == Kind::operation) sums.of(parent->name).bytes += event.bytes;
      continue;
    }
    if (event.kind == Kind::operation) add_operation(event, parent, sums);
    open.push_back(&event);
  }
  return sums.take();
}

void merge(std::vector<Operation>& into, const std::vector<Operation>& others) {
  std::unordered_map<std::string, std::size_t> places;
  for (std::size_t i = 0; i < into.size(); ++i) places[into[i].name] = i;
  for (const auto& other : others) {
    const auto [place, fresh] = places.emplace(other.name, into.size());
    if (fresh) into.push_back({.name = other.name});
    auto& row = into[place->second];
    row.calls += other.calls;
    row.self_s += other.self_s;
    row.total_s += other.total_s;
    row.device_s += other.device_s;
    row.bytes += other.bytes;
  }
}

void sort_by_cost(std::vector<Operation>& operations) {
  std::ranges::stable_sort(operations, [](const Operation& a, const Operation& b) {
    return a.self_s + a.device_s > b.self_s + b.device_s;
  });
}

std::map<std::string, std::int64_t> phase_times(const std::vector<ProfiledEvent>& events) {
  constexpr std::string_view prefix = "bimetal::";
  std::map<std::string, std::int64_t> times;
  for (const auto& event : events) {
    if (event.kind != Kind::mark || !event.name.starts_with(prefix)) continue;
    times[event.name.substr(prefix.size())] += event.end_ns - event.begin_ns;
  }
  return times;
}

std::int64_t covered(std::vector<Interval> intervals) {
  std::ranges::sort(intervals, {}, &Interval::begin_ns);
  std::int64_t sum = 0, until = 0;
  for (const auto& [begin, end] : intervals) {
    sum += std::max<std::int64_t>(0, end - std::max(begin, until));
    until = std::max(until, end);
  }
  return sum;
}

}  // namespace bimetal::train
