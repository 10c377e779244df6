#pragma once
// The three batch sizes of the file, which have to agree. Private to this layer.

#include <cstdint>
#include <optional>

#include "bimetal/job/deepspeed/reader.h"

namespace bimetal::job::deepspeed {

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
