#include "bimetal/train/gradient_compression.h"

#include <algorithm>

namespace bimetal::train {
namespace {

bool corrects_momentum(const job::JobConfig& job, int world_size) {
  return world_size > 1 && job.compression.gradients == "topk" && job.train.optimizer == "sgd";
}

}  // namespace

comm::CompressedAllReduceOptions gradient_compression(const job::JobConfig& job, int world_size) {
  comm::CompressedAllReduceOptions options;
  options.compression.scheme = comm::scheme_of(job.compression.gradients);
  options.compression.links = comm::compressed_links_of(job.compression.links);
  options.compression.density = job.compression.topk_density;
  options.compression.momentum = corrects_momentum(job, world_size) ? job.train.momentum : 0;
  // Beyond what a rank may be, it is refused by its own check.
  options.compression.rank =
      static_cast<int>(std::min<std::int64_t>(job.compression.powersgd_rank, 1 << 30));
  options.warmup_steps = job.compression.topk_warmup_steps;
  return options;
}

job::TrainConfig optimizer_config(const job::JobConfig& job, int world_size) {
  job::TrainConfig config = job.train;
  if (corrects_momentum(job, world_size)) config.momentum = 0;
  return config;
}

}  // namespace bimetal::train
