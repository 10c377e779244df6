#include "bimetal/train/profile/step_profiler.h"

#include <ATen/record_function.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/profiler_kineto.h>

#include <algorithm>
#include <array>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "bimetal/base/files.h"
#include "bimetal/comm/exchange.h"
#include "bimetal/train/profile/rank_profile.h"

namespace bimetal::train {
namespace {

namespace libtorch = torch::autograd::profiler;
using torch::profiler::impl::ActivityType;
using torch::profiler::impl::ProfilerConfig;
using torch::profiler::impl::ProfilerState;

std::set<ActivityType> activities_of(const torch::Device& device) {
  if (device.is_cuda()) return {ActivityType::CPU, ActivityType::CUDA};
  if (device.is_xpu()) return {ActivityType::CPU, ActivityType::XPU};
  return {ActivityType::CPU};
}

void start_profiler(const torch::Device& device) {
  const ProfilerConfig config(ProfilerState::KINETO, /*report_input_shapes=*/false,
                              /*profile_memory=*/true);
  libtorch::prepareProfiler(config, activities_of(device));
  libtorch::enableProfiler(config, activities_of(device));
}

ProfiledEvent::Kind kind_of(const libtorch::KinetoEvent& event) {
  using Kind = ProfiledEvent::Kind;
  if (event.name() == "[memory]") return Kind::memory;
  if (event.deviceType() != c10::DeviceType::CPU) return Kind::kernel;
  const bool marked = event.scope() == static_cast<std::uint8_t>(at::RecordScope::USER_SCOPE);
  return marked ? Kind::mark : Kind::operation;
}

/// Whether something that began then is a part of one of the steps.
bool within(std::int64_t begin_ns, const std::vector<Interval>& steps) {
  return std::ranges::any_of(steps, [&](const Interval& step) {
    return begin_ns >= step.begin_ns && begin_ns <= step.end_ns;
  });
}

/// Only events within the steps: an evaluation between two of them does not count.
std::vector<ProfiledEvent> stop_profiler(const std::vector<Interval>& steps) {
  std::vector<ProfiledEvent> events;
  const auto result = libtorch::disableProfiler();
  for (const auto& event : result->events()) {
    const auto begin = static_cast<std::int64_t>(event.startNs());
    ProfiledEvent mine{.kind = kind_of(event),
                       .name = event.name(),
                       .begin_ns = begin,
                       .end_ns = begin + static_cast<std::int64_t>(event.durationNs()),
                       .thread = event.startThreadId(),
                       .bytes = event.nBytes()};
    if (mine.kind == ProfiledEvent::Kind::memory) mine.end_ns = begin;
    if (within(begin, steps)) events.push_back(std::move(mine));
  }
  return events;
}

double seconds_of(const std::vector<Interval>& steps) {
  double seconds = 0;
  for (const auto& [begin, end] : steps) seconds += static_cast<double>(end - begin) * kNanosecond;
  return seconds;
}

double largest_error(const std::vector<ClockOffset>& clocks) {
  const auto worst = std::ranges::max_element(clocks, {}, &ClockOffset::error_ns);
  return static_cast<double>(worst->error_ns) * kNanosecond;
}

}  // namespace

progress::StepTimes times_of(const Profile& profile) {
  progress::StepTimes times{.first_step = profile.first_step, .last_step = profile.last_step};
  for (const auto& phase : profile.phases) times.phases.push_back(phase.name);
  times.seconds = profile.seconds_of;
  times.spans = profile.spans;
  times.latency_s = profile.latency_s;
  return times;
}

struct StepProfiler::Recording {
  std::vector<Interval> steps;
  std::vector<FabricCall> calls;
  FabricCalls fabric;
  std::int64_t last_step = 0;
  std::unique_ptr<at::RecordFunction> mark;  ///< of the step that runs
  bool profiling = true;

  /// After each step: only a limited number of calls is kept.
  void take_calls(const comm::Group& group) {
    for (auto& call : fabric.take(group.flight_recorder())) {
      if (within(call.begin_ns, steps)) calls.push_back(std::move(call));
    }
  }

  ~Recording() {
    mark.reset();
    if (profiling) libtorch::disableProfiler();
  }
};

StepProfiler::StepProfiler(comm::Group group, std::optional<ProfileRequest> request,
                           const torch::Device& device, std::string place,
                           std::chrono::milliseconds timeout)
    : group_(std::move(group)),
      request_(std::move(request)),
      device_(device),
      place_(std::move(place)),
      timeout_(timeout) {
  std::array<std::int64_t, 2> steps{};
  if (request_) steps = {request_->first_step, request_->last_step};
  group_.broadcast(comm::buffer(std::span(steps)), 0, Deadline::after(timeout_)).wait();
  if (!request_) request_.emplace();
  request_->first_step = steps[0];
  request_->last_step = steps[1];
  done_ = request_->last_step == 0;
}

StepProfiler::~StepProfiler() = default;

bool StepProfiler::ask(std::int64_t step, int steps, std::function<void(const Profile&)> done) {
  if (!done_) return false;
  request_ = {.first_step = step + 1, .last_step = step + steps, .done = std::move(done)};
  done_ = false;
  return true;
}

void StepProfiler::begin(std::int64_t step) {
  if (done_ || step < request_->first_step) return;
  if (!recording_) {
    if (step > request_->last_step) return;  // resumed behind it
    start_profiler(device_);
    recording_ = std::make_unique<Recording>();
    recording_->take_calls(group_);
  }
  recording_->steps.push_back({.begin_ns = wall_clock_ns()});
  recording_->mark = std::make_unique<at::RecordFunction>(at::RecordScope::USER_SCOPE);
  recording_->mark->before(fmt::format("step {}", step));
}

bool StepProfiler::end(std::int64_t step) {
  if (!recording_) return false;
  recording_->mark.reset();
  recording_->steps.back().end_ns = wall_clock_ns();
  recording_->last_step = step;
  recording_->take_calls(group_);
  if (step >= request_->last_step) gather();
  return true;
}

bool StepProfiler::finish() {
  if (recording_) gather();
  return done_;
}

void StepProfiler::gather() {
  const auto recording = std::exchange(recording_, nullptr);
  done_ = true;
  recording->profiling = false;
  RankTrace mine{.rank = group_.rank(), .place = place_};
  mine.events = stop_profiler(recording->steps);
  const auto deadline = Deadline::after(timeout_);
  const auto clocks = clock_offsets(group_, deadline);
  recording->take_calls(group_);  // some end a moment after those who wait for them
  mine.calls = std::move(recording->calls);
  mine.clock_ahead_ns = clocks[static_cast<std::size_t>(group_.rank())].ns;
  std::array begins = {recording->steps.front().begin_ns, recording->steps.back().begin_ns};
  group_.broadcast(comm::buffer(std::span(begins)), 0, deadline).wait();  // rank 0's
  mine.start_ns = begins[0];
  mine.last_step_ns = begins[1];
  const auto all = comm::all_gather_bytes(
      group_, encode(summarize(mine, seconds_of(recording->steps))), deadline);
  if (group_.rank() != 0) return;

  Profile profile{.first_step = request_->first_step,
                  .last_step = recording->last_step,
                  .trace = request_->trace,
                  .clock_error_s = largest_error(clocks)};
  for (const auto& clock : clocks) {
    profile.latency_s.push_back(static_cast<double>(clock.error_ns) * kNanosecond);
  }
  std::vector<std::string> traces;
  for (const auto& bytes : all) {
    auto rank = decode(bytes);
    add_to(profile, rank);
    traces.push_back(std::move(rank.trace));
  }
  sort_by_cost(profile.operations);
  if (!profile.trace.empty()) write_file_atomically(profile.trace, trace_file(traces));
  if (request_->done) request_->done(profile);
}

}  // namespace bimetal::train
