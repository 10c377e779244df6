#pragma once
// A worker's device, as typed after --worker. Part of the job's configuration, so it parses without
// libtorch being initialised.
//
//   spec   = type [ ":" item { "," item } ]
//   type   = "auto" | "cpu" | "cuda" | "mps" | "xpu"      (AMD cards are "cuda" to libtorch)
//   item   = index | key "=" value                        (an index comes first, accelerators only;
//                                                          a ":" may follow it in a comma's place)
//   key    = "threads" | "speed" | "memory" | "precision"
//          | "offload_optimizer" | "offload_parameters" | "offload_path"   (each at most once)
//   memory = number unit, unit one of B, KB, MB, GB, TB (powers of 1000), KiB … TiB (of 1024)
//
// For example: cpu · cuda:1 · cuda:0:precision=float16 · cpu:threads=1,speed=0.25,memory=2GiB ·
// cuda:0,speed=0.5 · cpu:offload_optimizer=disk,offload_path=/mnt/nvme

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "bimetal/job/job_config.h"

namespace bimetal::job {

struct JobConfig;

struct WorkerSpec {
  std::string type = "auto";
  std::optional<int> index;    ///< cuda:1 → 1
  std::optional<int> threads;  ///< CPU threads; default: cores ÷ workers on this host
  double speed = 1.0;          ///< (0, 1]: emulates a slower device by pausing after compute
  std::optional<std::uint64_t> memory_bytes;  ///< memory=2GiB: limit of the worker's
                                              ///< allocations
  std::string precision = {};  ///< as train.precision, for this worker; empty: the job's
  /// As in [zero] of the job file, for this worker; empty: the job's.
  std::string offload_optimizer = {}, offload_parameters = {}, offload_path = {};

  friend bool operator==(const WorkerSpec&, const WorkerSpec&) = default;
};

/// Error(InvalidArgument) quotes the spec, names the part that is wrong and lists the valid keys.
WorkerSpec parse_worker_spec(std::string_view text);

/// `device` with whatever else the spec says of it, so that workers are told apart:
/// "cpu:threads=1,speed=0.25".
std::string with_device(WorkerSpec spec, std::string device);

/// The shortest spec that parses back to an equal one; default values are left out.
std::string to_string(const WorkerSpec& spec);

/// The precision that a worker computes in: its own, or else the job's.
const std::string& precision_of(const JobConfig& job, const WorkerSpec& worker);

/// The job as this worker has it: with what its spec gives for it alone of [zero].
JobConfig as_worker_has_it(JobConfig job, const WorkerSpec& worker);

// Which settings cannot work together: the one place that refuses them.

/// Error(Unsupported) that names the two settings and says why they do not go together, and what
/// does. `workers`: those that are known here; none stands for one that takes all from the job.
void require_possible(const JobConfig& job, std::span<const WorkerSpec> workers);

/// Whether require_possible() refuses nothing.
bool is_possible(const JobConfig& job, std::span<const WorkerSpec> workers = {});

/// Whether workers may come and go in such a job: elastic.min_workers alone would be refused if
/// not.
bool may_be_elastic(const JobConfig& job);

}  // namespace bimetal::job
