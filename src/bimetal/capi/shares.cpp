// The sampler and the balancer.

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "bimetal/balance/balancer.h"
#include "bimetal/capi/boundary.h"
#include "bimetal/data/sampler.h"

using namespace bimetal;

struct bimetal_sampler {
  data::EpochSampler sampler;
};

struct bimetal_balancer {
  balance::Balancer balancer;
};

extern "C" {

std::int32_t bimetal_sampler_new(std::int64_t dataset_size, std::uint64_t seed,
                                 std::int32_t shuffle, const std::int64_t* weights,
                                 bimetal_sampler** sampler) {
  return capi::guarded([&] {
    const auto costs = capi::list(weights, dataset_size);
    *sampler = new bimetal_sampler{
        data::EpochSampler(dataset_size, seed, shuffle != 0, {costs.begin(), costs.end()})};
  });
}

void bimetal_sampler_free(bimetal_sampler* sampler) {
  delete sampler;
}

std::int64_t bimetal_sampler_remaining(const bimetal_sampler* sampler) {
  return sampler->sampler.remaining();
}

void bimetal_sampler_position(const bimetal_sampler* sampler, std::int64_t* epoch,
                              std::int64_t* offset) {
  const auto at = sampler->sampler.position();
  *epoch = at.epoch;
  *offset = at.offset;
}

std::int32_t bimetal_sampler_seek(bimetal_sampler* sampler, std::int64_t epoch,
                                  std::int64_t offset) {
  return capi::guarded([&] { sampler->sampler.seek({epoch, offset}); });
}

std::int64_t bimetal_sampler_mean_weight(const bimetal_sampler* sampler, std::int64_t samples) {
  return sampler->sampler.mean_weight(samples);
}

std::int32_t bimetal_sampler_deal(bimetal_sampler* sampler, const std::int64_t* shares,
                                  std::int32_t ranks, std::int64_t samples, std::int64_t* counts,
                                  std::int64_t* weights, std::int64_t* indices,
                                  std::int64_t* total) {
  return capi::guarded([&] {
    capi::require(shares, "the shares");
    const auto step = sampler->sampler.deal(capi::list(shares, ranks), samples);
    std::ranges::copy(step.counts, counts);
    std::ranges::copy(step.weights, weights);
    std::ranges::copy(step.indices, indices);
    *total = step.total;
  });
}

std::int32_t bimetal_balancer_new(std::int32_t ranks, std::int64_t global_batch, const char* policy,
                                  const double* weights, const double* alpha, const double* beta,
                                  bimetal_balancer** balancer) {
  return capi::guarded([&] {
    capi::require(policy, "the policy");
    const auto fixed = capi::list(weights, ranks);
    std::vector<balance::Device> devices(static_cast<std::size_t>(std::max(ranks, 0)));
    for (std::size_t rank = 0; rank < devices.size(); ++rank) {
      const double per_step = alpha != nullptr ? alpha[rank] : 0;
      const double per_sample = beta != nullptr ? beta[rank] : 0;
      if (per_step == 0 && per_sample == 0) continue;
      devices[rank].cost = balance::CostModel(per_step, per_sample);
    }
    *balancer =
        new bimetal_balancer{balance::Balancer({.policy = balance::policy_named(policy),
                                                .fixed_weights = {fixed.begin(), fixed.end()},
                                                .global_batch = global_batch},
                                               std::move(devices))};
  });
}

void bimetal_balancer_free(bimetal_balancer* balancer) {
  delete balancer;
}

void bimetal_balancer_shares(const bimetal_balancer* balancer, std::int64_t* shares) {
  std::ranges::copy(balancer->balancer.shares(), shares);
}

std::int32_t bimetal_balancer_observe(bimetal_balancer* balancer, const std::int64_t* batches,
                                      const double* seconds, const std::int64_t* shadow_batches,
                                      const double* shadow_seconds,
                                      const std::int32_t* out_of_memory, std::int32_t* changed) {
  return capi::guarded([&] {
    capi::require(batches, "the batches");
    capi::require(seconds, "the seconds");
    std::vector<balance::StepFigures> figures(balancer->balancer.devices().size());
    for (std::size_t rank = 0; rank < figures.size(); ++rank) {
      auto& mine = figures[rank];
      mine.batch = batches[rank];
      mine.compute_seconds = seconds[rank];
      if (out_of_memory != nullptr) mine.out_of_memory = out_of_memory[rank] != 0;
      if (shadow_batches == nullptr || shadow_seconds == nullptr) continue;
      mine.shadow_batch = shadow_batches[rank];
      mine.shadow_seconds = shadow_seconds[rank];
    }
    *changed = balancer->balancer.observe(figures) ? 1 : 0;
  });
}

double bimetal_balancer_alone_rate(const bimetal_balancer* balancer, std::int32_t rank) {
  return balancer->balancer.alone_rate(rank);
}

}  // extern "C"
