#pragma once
// Ranks of a small model, for plans of memory.

#include "bimetal/plan/memory/memory_plan.h"

namespace bimetal::plan::test {

inline constexpr double kMiB = 1 << 20;

/// Four units of 4 MiB of parameters, 1 MiB of activations for each sample.
inline ModelFacts four_units() {
  ModelFacts facts;
  for (int u = 0; u < 4; ++u) {
    facts.units.push_back({.name = "unit",
                           .parameters = 1 << 20,
                           .output = {0, 0.25 * kMiB},
                           .saved = {0, kMiB},
                           .forward_peak = {0, 1.2 * kMiB},
                           .backward_peak = {0, 1.5 * kMiB}});
  }
  facts.state_bytes = 8;
  return facts;
}

inline RankLoad load_of(double shard, double samples = 4, double at_once = 4) {
  return {.ranks = 2, .shard = shard, .samples = samples, .at_once = at_once, .bucket_bytes = 0};
}

inline MemoryInput two_ranks(double room) {
  MemoryInput input;
  for (const double shard : {2.0 / 3, 1.0 / 3}) {
    input.ranks.push_back({.name = shard > 0.5 ? "rank 0" : "rank 1",
                           .facts = four_units(),
                           .load = load_of(shard),
                           .compute_s = 1,
                           .room = room});
  }
  input.link = {1e-4, 1e9};
  return input;
}

}  // namespace bimetal::plan::test
