#pragma once
// What the sections of the file make of a job. Each takes a section's value; errors as
// apply_deepspeed()'s. Private to this layer.

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

}  // namespace bimetal::job::deepspeed
