#pragma once
// What a job's compression of gradients means for the exchange and for the optimizer.

#include "bimetal/comm/compress/compressed_all_reduce.h"
#include "bimetal/train/job.h"

namespace bimetal::train {

/// With topk, SGD's momentum is applied before the largest elements are chosen (momentum
/// correction: docs/compression.md); a rank alone chooses nothing.
comm::CompressedAllReduceOptions gradient_compression(const Job& job, int world_size);

/// job.train, without a momentum that gradient_compression() has taken over.
TrainConfig optimizer_config(const Job& job, int world_size);

}  // namespace bimetal::train
