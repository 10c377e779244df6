#include "bimetal/train/measure/memory_check.h"

#include <c10/core/CachingDeviceAllocator.h>

#include <algorithm>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "bimetal/base/deadline.h"
#include "bimetal/base/error.h"
#include "bimetal/comm/exchange.h"
#include "bimetal/device/host.h"
#include "bimetal/device/host_allocator.h"
#include "bimetal/net/shm/shared_memory.h"
#include "bimetal/train/setup.h"
#include "bimetal/train/trained_model.h"

namespace bimetal::train {
namespace {

constexpr double kWorthALook = 1.0 / 8;

double state_bytes(const job::JobConfig& job, double elements, torch::Dtype dtype) {
  return elements * (2 * static_cast<double>(c10::elementSize(dtype)) +
                     optimizer_state_bytes(job.train, dtype));
}

progress::MemoryReport planned(const plan::MemoryUse& use) {
  return {.planned = use.peak(),
          .program = use.program,
          .parameters = use.parameters,
          .gradients = use.gradients,
          .optimizer = use.optimizer,
          .activations = use.activations,
          .buffers = use.buffers,
          .kept = use.kept};
}

/// The most bytes that tensors of this process have had at once on an accelerator since the last
/// call, or ever; 0 where libtorch does not count them (Metal).
double take_peak_bytes(const torch::Device& device) {
  auto* const allocator = dynamic_cast<c10::DeviceAllocator*>(c10::GetAllocator(device.type()));
  if (allocator == nullptr || !allocator->initialized()) return 0;
  const auto index = device.has_index() ? device.index() : c10::DeviceIndex{0};
  constexpr auto kAll = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  const auto peak = allocator->getDeviceStats(index).allocated_bytes[kAll].peak;
  allocator->resetPeakStats(index);
  return static_cast<double>(peak);
}

}  // namespace

MemoryCheck::MemoryCheck(comm::Group group, const job::JobConfig& job,
                         const TrainerOptions& options, const device::Place& place,
                         const task::Task& task, std::optional<double>& elements)
    : group_(std::move(group)),
      job_(job),
      options_(options),
      place_(place),
      task_(task),
      elements_(elements),
      room_(measure_room(place, options)) {}

/// All plan, or none.
bool MemoryCheck::plans() {
  if (job_.train.check_memory == "off") return false;
  const bool chosen = job_.mesh.stages > 1 && job_.train.recompute == "auto";
  const bool asked = job_.zero.level > 0 || chosen || options_.worker.memory_bytes.has_value();
  if (!asked && !elements_) elements_ = size_of_model(task_).elements;
  const bool look = asked || state_bytes(job_, *elements_, place_.dtype) > kWorthALook * room_.room;
  const auto all = comm::all_gather_text(group_, look ? "yes" : "no",
                                         Deadline::after(milliseconds_of(job_.parallel.timeout_s)));
  return std::ranges::find(all, "yes") != all.end();
}

MemoryQuestion MemoryCheck::question(const Computing& on, std::int64_t batch) const {
  return {.job = job_,
          .worker = options_.worker,
          .task = task_,
          .on = on,
          .room = room_,
          .batch = batch};
}

void MemoryCheck::plan(const Computing& on, std::int64_t batch, std::vector<double> speeds,
                       progress::Observer& observer) {
  if (!plans()) return;
  observer.on_phase("planning memory");
  auto asked = question(on, batch);
  speeds.resize(static_cast<std::size_t>(group_.size()), 1.0);
  asked.shards = shard_weights(job_, group_, place_.device, speeds);
  const auto input = measure_memory(group_, asked);
  if (!input.is_known()) return;  // the steps themselves will tell
  const auto plan = plan::plan_memory(input);
  for (const auto& rank : input.ranks) shards_.push_back(rank.load.shard);
  take_plan(plan.asked().uses);
  // Micro-batches that do not fit are halved as they fail, where a step can be repeated.
  const bool repeats = job_.zero.update != "backward";
  const auto least = repeats ? plan::at_least(input, /*recompute=*/true) : input;
  const auto least_plan = plan::plan_memory(least);
  if (!plan::clearly_fails(least, least_plan)) return;
  const auto advice = plan::memory_advice(least, least_plan);
  refuse(advice, observer);
}

void MemoryCheck::refuse(const std::string& advice, progress::Observer& observer) const {
  if (job_.train.check_memory == "warn") return observer.on_notice(advice);
  throw Error(ErrorCode::OutOfMemory,
              advice + "\nTo try it all the same: train.check_memory=\"warn\".");
}

void MemoryCheck::take_plan(const std::vector<plan::MemoryUse>& by_rank) {
  plan_.clear();
  for (const auto& use : by_rank) plan_.push_back(planned(use));
  const auto& mine = plan_[static_cast<std::size_t>(group_.rank())];
  device::keep_at_most(static_cast<std::size_t>(mine.kept));
}

// Borrowed memory is there from the first sum on. Until then a peak from before was noted.
void MemoryCheck::note_peak() {
  const bool begun = std::exchange(begun_, true);
  if (!place_.device.is_cpu()) {
    const double most = take_peak_bytes(place_.device);
    if (begun) peak_ = std::max(peak_, most);
    return;
  }
  const auto peak = device::process_memory().peak_bytes;
  const auto borrowed = std::min(peak, net::SharedMemory::borrowed_bytes());
  peak_ = std::max(peak_, static_cast<double>(peak - borrowed));
}

void MemoryCheck::report(progress::Report& report) {
  std::vector<double> peaks(static_cast<std::size_t>(group_.size()));
  const std::vector<double> mine = {peak_};
  group_
      .all_gather(comm::buffer(std::span(mine)), comm::buffer(std::span(peaks)),
                  Deadline::after(milliseconds_of(job_.parallel.timeout_s)))
      .wait();
  for (std::size_t rank = 0; rank < peaks.size(); ++rank) {
    auto& memory = report.workers[rank].memory;
    if (!plan_.empty()) memory = plan_[rank];
    memory.peak = peaks[rank];
  }
}

namespace {

constexpr std::uint64_t kMostCopied = 256u << 20;
constexpr std::chrono::milliseconds kPatience{500};  // for each way

using Traffic = std::optional<optim::DiskTraffic>;

std::optional<progress::DiskReport> since(const Traffic& start, const Traffic& now) {
  if (!now) return std::nullopt;
  const auto before = start.value_or(optim::DiskTraffic{});
  return progress::DiskReport{
      .kept_bytes = static_cast<double>(now->kept_bytes),
      .read_bytes = static_cast<double>(now->read.bytes - before.read.bytes),
      .read_s = now->read.seconds - before.read.seconds,
      .written_bytes = static_cast<double>(now->written.bytes - before.written.bytes),
      .write_s = now->written.seconds - before.written.seconds,
      .wait_s = now->wait_seconds - before.wait_seconds};
}

template <typename Wire>
void fields(Wire& wire, std::optional<progress::DiskReport>& disk) {
  bool there = disk.has_value();
  wire(there);
  if (!there) return;
  if (!disk) disk.emplace();
  wire(disk->kept_bytes, disk->read_bytes, disk->read_s, disk->written_bytes, disk->write_s,
       disk->wait_s);
}

}  // namespace

OffloadRates::OffloadRates(const job::JobConfig& job, TrainedModel& trained,
                           progress::Observer& observer)
    : job_(job), trained_(trained) {
  std::uint64_t kept = 0;
  for (const auto& disk : {states(), parameters()}) kept += disk ? disk->kept_bytes : 0;
  // The report of tensors in parts, whose workers are replicas, has none of it.
  const bool reported = job_.mesh.tensor <= 1 || job_.mesh.stages > 1;
  if (kept == 0 || !reported) return;
  observer.on_phase("measuring the disk");
  copy_ = optim::copy_plainly(job_.zero.offload_path, std::min(kept, kMostCopied), kPatience);
}

void OffloadRates::start() {
  states_before_ = states();
  parameters_before_ = parameters();
}

std::optional<optim::DiskTraffic> OffloadRates::states() const {
  const auto* const kept = dynamic_cast<const optim::KeepsOnDisk*>(&trained_.optimizer());
  return kept != nullptr ? kept->disk_traffic() : std::nullopt;
}

std::optional<optim::DiskTraffic> OffloadRates::parameters() const {
  const auto* const sharded = trained_.sharded();
  return sharded != nullptr ? sharded->disk_traffic() : std::nullopt;
}

void OffloadRates::report(comm::Group group, progress::Report& report,
                          std::chrono::milliseconds timeout) const {
  progress::OffloadReport mine{.states = since(states_before_, states()),
                               .parameters = since(parameters_before_, parameters())};
  if (mine.states || mine.parameters) mine.folder = job_.zero.offload_path;
  if (copy_.read.bytes > 0) {
    mine.copy = since(
        {}, optim::DiskTraffic{
                .kept_bytes = copy_.written.bytes, .read = copy_.read, .written = copy_.written});
  }
  const auto all =
      comm::all_gather_fields(std::move(group), std::move(mine), Deadline::after(timeout),
                              [](auto& wire, progress::OffloadReport& offload) {
                                wire(offload.folder);
                                fields(wire, offload.states);
                                fields(wire, offload.parameters);
                                fields(wire, offload.copy);
                              });
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank].states || all[rank].parameters) report.workers[rank].offload = all[rank];
  }
}

}  // namespace bimetal::train
