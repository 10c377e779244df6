#include "bimetal/train/measure/offload_rates.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "bimetal/base/deadline.h"
#include "bimetal/comm/exchange.h"

namespace bimetal::train {
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
