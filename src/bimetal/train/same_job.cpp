#include "bimetal/train/same_job.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <string>
#include <utility>
#include <vector>

#include "bimetal/base/error.h"
#include "bimetal/base/wire.h"
#include "bimetal/train/exchange.h"

namespace bimetal::train {

// All that decides which collectives a rank calls, and with what. Where the data lies, which
// devices there are and how many checkpoints are kept may differ.
JobFacts facts_of(const Job& job) {
  const auto text = [](const auto& value) { return fmt::format("{}", value); };
  const auto& train = job.train;
  return {
      {"model.name", job.model.name},
      {"model.hidden", text(job.model.hidden)},
      {"data.name", job.data.name},
      {"data.serve", text(job.data.serve)},
      {"data.serve_max_gb", text(job.data.serve_max_gb)},
      {"data.bootstrap_seed", text(job.data.bootstrap_seed)},
      {"train.epochs", text(train.epochs)},
      {"train.steps", text(train.steps)},
      {"train.global_batch", text(train.global_batch)},
      {"train.seed", text(train.seed)},
      {"train.dtype", train.dtype},
      {"train.optimizer", train.optimizer},
      {"train.learning_rate", text(train.learning_rate)},
      {"train.momentum", text(train.momentum)},
      {"train.weight_decay", text(train.weight_decay)},
      {"train.beta1", text(train.beta1)},
      {"train.beta2", text(train.beta2)},
      {"train.epsilon", text(train.epsilon)},
      {"train.trust_coefficient", text(train.trust_coefficient)},
      {"train.warmup_steps", text(train.warmup_steps)},
      {"train.schedule", train.schedule},
      {"train.decay_steps", text(train.decay_steps)},
      {"train.min_learning_rate_ratio", text(train.min_learning_rate_ratio)},
      {"train.evaluate", text(train.evaluate)},
      {"parallel.mode", job.parallel.mode},
      {"parallel.servers", fmt::format("{}", fmt::join(job.parallel.servers, " "))},
      {"parallel.balance", fmt::format("{} {}", static_cast<int>(job.parallel.balance),
                                       fmt::join(job.parallel.weights, " "))},
      {"parallel.bucket_mb", text(job.parallel.bucket_mb)},
      {"parallel.compression", job.parallel.compression},
      {"parallel.pull_compression", job.parallel.pull_compression},
      {"parallel.topk_density", text(job.parallel.topk_density)},
      {"parallel.topk_warmup_steps", text(job.parallel.topk_warmup_steps)},
      {"parallel.powersgd_rank", text(job.parallel.powersgd_rank)},
      {"checkpoint.every_steps", text(job.checkpoint.every_steps)},
  };
}

namespace {

Bytes encode_facts(const JobFacts& facts) {
  WireWriter writer;
  for (const auto& [key, value] : facts) writer.string(value);
  return std::move(writer).take();
}

}  // namespace

void require_same_job(comm::Group group, const Job& job, std::chrono::milliseconds timeout) {
  const auto facts = facts_of(job);
  const auto all = all_gather_bytes(group, encode_facts(facts), Deadline::after(timeout));
  for (std::size_t rank = 1; rank < all.size(); ++rank) {
    WireReader first(all[0]), other(all[rank]);
    for (const auto& [key, mine] : facts) {
      const auto expected = first.string();
      const auto found = other.string();
      if (expected == found) continue;
      throw Error(ErrorCode::CallMismatch,
                  fmt::format("{} is '{}' on rank {} but '{}' on rank 0: give every rank the same "
                              "job",
                              key, found, rank, expected),
                  static_cast<int>(rank));
    }
  }
}

}  // namespace bimetal::train
