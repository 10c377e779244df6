#pragma once
// What the sections of the file make of a job. Each takes a section's value; errors as
// apply_deepspeed()'s. Private to this layer.

#include <cstdint>
#include <optional>

#include "bimetal/job/deepspeed/reader.h"
#include "bimetal/job/job_config.h"

namespace bimetal::job::deepspeed {

void read_optimizer(const Value& section, TrainConfig& train);

/// After the optimizer, whose rate a cosine's warm-up is a part of.
void read_scheduler(const Value& section, TrainConfig& train);

void read_fp16(const Value& section, TrainConfig& train);
void read_bf16(const Value& section, TrainConfig& train);
void read_torch_autocast(const Value& section, TrainConfig& train);

void read_zero(const Value& section, JobConfig& job);
void read_activation_checkpointing(const Value& section, TrainConfig& train);
void read_tensorboard(const Value& section, MonitorConfig& monitor);

// The three batch sizes of the file, which have to agree. Private to this layer.

struct BatchSizes {
  std::optional<std::int64_t> train;         ///< train_batch_size: of a step, over all ranks
  std::optional<std::int64_t> micro;         ///< train_micro_batch_size_per_gpu
  std::optional<std::int64_t> accumulation;  ///< gradient_accumulation_steps
};

/// Those that are missing, from the others; `ranks` is 0 where it is not known. A micro-batch that
/// is not in the file stays empty: shares are then what the devices' speeds make them.
/// InvalidArgument, as
/// `file.refuse()` says it, if they do not agree, or the ranks are needed and not known.
BatchSizes completed(BatchSizes sizes, int ranks, const Value& file);

}  // namespace bimetal::job::deepspeed
