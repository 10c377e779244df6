#include "bimetal/job/deepspeed/batch.h"

#include <fmt/format.h>

namespace bimetal::job::deepspeed {
namespace {

std::int64_t divided_up(std::int64_t number, std::int64_t by) {
  return (number + by - 1) / by;
}

void require_agreement(const BatchSizes& sizes, int ranks, const Value& file) {
  const auto of_rank = *sizes.micro * *sizes.accumulation;
  const bool agree = ranks > 0 ? *sizes.train == of_rank * ranks : *sizes.train % of_rank == 0;
  if (agree) return;
  const auto product =
      ranks > 0 ? fmt::format("{} × {} × {} ranks = {}", *sizes.micro, *sizes.accumulation, ranks,
                              of_rank * ranks)
                : fmt::format("a multiple of {} × {}", *sizes.micro, *sizes.accumulation);
  file.refuse(fmt::format(
      "the batch sizes do not agree: train_batch_size is {}, but train_micro_batch_size_per_gpu × "
      "gradient_accumulation_steps × ranks is {}; change one of them, or leave one out",
      *sizes.train, product));
}

}  // namespace

BatchSizes completed(BatchSizes sizes, int ranks, const Value& file) {
  auto& [train, micro, accumulation] = sizes;
  if (train && micro && accumulation) {
    require_agreement(sizes, ranks, file);
  } else if (micro && !train) {
    if (ranks == 0) {
      file.refuse(
          "needs train_batch_size: how many ranks there will be is not known, so that it does not "
          "follow from train_micro_batch_size_per_gpu");
    }
    if (!accumulation) accumulation = 1;
    train = *micro * *accumulation * ranks;
  } else if (train && micro && ranks > 0) {
    accumulation = divided_up(*train, *micro * ranks);
  }
  return sizes;
}

}  // namespace bimetal::job::deepspeed
