#pragma once
// DeepSpeed's configuration (ds_config.json) as a job. Keys are as in its documentation
// (deepspeed.ai, "DeepSpeed Configuration JSON"); docs/deepspeed.md says what each does here.

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "bimetal/job/job_config.h"

namespace bimetal::job {

/// Keys of the file that are no keys of a job, for programs with a training loop of their own.
struct DeepSpeedLoop {
  bool optimizer = false;  ///< it has an "optimizer"
  bool scheduler = false;
  std::int64_t micro_batch = 0;   ///< most samples of a rank in one backward; 0: does not matter
  std::int64_t accumulation = 1;  ///< backwards for each step
  bool operator==(const DeepSpeedLoop&) const = default;
};

/// Gets notes on things that work but that the user should change.
using Notify = std::function<void(const std::string& notice)>;

/// Changes `job` as `json` says. Keys that it leaves out, or that are "auto" or null, stay as they
/// are. `ranks`: how many the job will have; 0 where that is not known yet, so that
/// train_batch_size must be in the file if train_micro_batch_size_per_gpu is. On unequal ranks
/// train_batch_size is kept, and the micro-batch is the most that one computes at once.
///
/// `notify` is told, once each, of keys that have no effect here, and why. Errors: InvalidArgument
/// "ORIGIN: key 'zero_optimization.stage': …" for text that is no JSON, unknown keys (with the
/// nearest name), wrong values and batch sizes that do not agree; Unsupported for keys that would
/// train something else if they were left out.
DeepSpeedLoop apply_deepspeed(std::string_view json, const std::string& origin, int ranks,
                              JobConfig& job, const Notify& notify = {});

/// The same from a file. InvalidArgument if it cannot be read.
DeepSpeedLoop apply_deepspeed(const std::filesystem::path& file, int ranks, JobConfig& job,
                              const Notify& notify = {});

}  // namespace bimetal::job
