#pragma once
// DeepSpeed's configuration (ds_config.json) as a job. Keys are as in its documentation
// (deepspeed.ai, "DeepSpeed Configuration JSON"); docs/deepspeed.md says what each does here.

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "bimetal/job/job_config.h"

namespace bimetal::job {

/// What the file says that is no key of a job, for programs with a training loop of their own.
struct DeepSpeedLoop {
  bool optimizer = false;  ///< it has an "optimizer"
  bool scheduler = false;
  std::int64_t micro_batch = 0;   ///< most samples of a rank in one backward; 0: does not matter
  std::int64_t accumulation = 1;  ///< backwards for each step
  bool operator==(const DeepSpeedLoop&) const = default;
};

/// Is told what the user should change although it works.
using Notify = std::function<void(const std::string& notice)>;

/// Changes `job` as `json` says; what it does not mention, or says "auto" or null for, stays what
/// it is. `ranks`: how many the job will have; 0 where that is not known yet, so that
/// train_batch_size must be in the file if train_micro_batch_size_per_gpu is. On unequal ranks
/// train_batch_size is what is kept, and the micro-batch is the most that one computes at once.
///
/// `notify` is told, once each, of keys that have no effect here, and why. Errors: InvalidArgument
/// "ORIGIN: key 'zero_optimization.stage': …" for what is no JSON, unknown keys (with the nearest
/// name), wrong values and batch sizes that do not agree; Unsupported for what would train
/// something else if it were left out.
DeepSpeedLoop apply_deepspeed(std::string_view json, const std::string& origin, int ranks,
                              JobConfig& job, const Notify& notify = {});

/// The same from a file. InvalidArgument if it cannot be read.
DeepSpeedLoop apply_deepspeed(const std::filesystem::path& file, int ranks, JobConfig& job,
                              const Notify& notify = {});

}  // namespace bimetal::job
