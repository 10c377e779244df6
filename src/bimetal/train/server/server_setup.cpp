#include "bimetal/train/server/server_setup.h"

#include <c10/util/StringUtil.h>
#include <fmt/format.h>
#include <torch/csrc/api/include/torch/types.h>

#include <algorithm>
#include <array>
#include <span>
#include <utility>

#include "bimetal/base/deadline.h"
#include "bimetal/base/error.h"
#include "bimetal/data/sampler.h"
#include "bimetal/job/same_job.h"
#include "bimetal/net/tcp/peer_timeout.h"
#include "bimetal/optim/optimizers.h"

namespace bimetal::train {
std::function<std::int64_t(std::int64_t epoch, std::int64_t offset, std::int64_t count)>
weights_in_order(const task::Dataset& dataset, std::uint64_t seed) {
  auto weights = task::weights_of(dataset);
  if (weights.empty()) return {};
  return [sampler = data::EpochSampler(dataset.size(), seed, true, std::move(weights))](
             std::int64_t epoch, std::int64_t offset, std::int64_t count) mutable {
    sampler.seek({.epoch = epoch, .offset = offset});
    const std::array all{count};
    return sampler.deal(all, count).weight();
  };
}

parallel::server::Credentials credentials_of(const ServerNetwork& network) {
  return {network.token, network.encryption, network.job_id};
}

std::optional<std::chrono::milliseconds> peer_timeout_of(const job::JobConfig& job) {
  const double seconds = job.fabric.peer_timeout_s;
  return seconds > 0 ? std::optional(milliseconds_of(seconds))
                     : net::peer_timeout_from_environment();
}

parallel::server::ShardPlan plan_of_model(const job::JobConfig& job,
                                          const task::ModelState& model) {
  if (!model.buffers.empty()) {
    throw Error(ErrorCode::Unsupported,
                fmt::format("the model has the buffer '{}' (a running mean or the like), which "
                            "parameter servers do not keep; take parallel.mode = \"all_reduce\"",
                            model.buffers.front().name));
  }
  std::vector<std::int64_t> sizes;
  for (const auto& [name, tensor] : model.parameters) sizes.push_back(tensor.numel());
  const bool whole =
      optim::needs_whole_tensors(job.train) || job.compression.gradients == "powersgd";
  if (!whole || sizes.empty()) {
    return parallel::server::plan_shards(sizes, job.servers.weights);
  }
  const auto largest = std::max(std::ranges::max(sizes), std::int64_t{1});
  return parallel::server::plan_shards(sizes, job.servers.weights, largest);
}

std::vector<std::string> common_facts(const job::JobConfig& job, const task::Task& task,
                                      const task::ModelState& model) {
  std::vector<std::string> facts;
  for (const auto& [name, value] : job::facts_of(job)) {
    facts.push_back(fmt::format("{} = {}", name, value));
  }
  for (auto& fact : task.facts()) facts.push_back(std::move(fact));
  for (const auto& [name, tensor] : model.parameters) {
    facts.push_back(c10::str(name, " ", tensor.sizes(), " ", tensor.scalar_type()));
  }
  return facts;
}

}  // namespace bimetal::train
