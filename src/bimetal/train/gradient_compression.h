#pragma once
// What a job's compression of gradients means for the exchange and for the optimizer.

#include "bimetal/comm/compress/compressed_all_reduce.h"
#include "bimetal/job/job_config.h"

namespace bimetal::train {

/// With topk, SGD's momentum is applied before the largest elements are chosen (momentum
/// correction: docs/compression.md); a rank alone chooses nothing.
comm::CompressedAllReduceOptions gradient_compression(const job::JobConfig& job, int world_size);

/// job.train, without a momentum that gradient_compression() has taken over.
job::TrainConfig optimizer_config(const job::JobConfig& job, int world_size);

}  // namespace bimetal::train
