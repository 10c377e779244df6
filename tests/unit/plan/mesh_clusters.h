#pragma once
// Models and clusters that plans are tested with.

#include <cstdint>
#include <utility>
#include <vector>

#include "bimetal/plan/mesh/cluster.h"
#include "bimetal/plan/mesh/mesh_plan.h"

namespace bimetal::plan {

inline constexpr double kGiB = 1 << 30;

inline MeshInput input_of(ModelFacts facts, std::int64_t batch) {
  MeshInput input;
  input.facts = {std::move(facts)};
  input.global_batch = batch;
  return input;
}

/// A small model in which a stage can be anything: units of unlike length.
inline ModelFacts unequal_units() {
  ModelFacts facts;
  for (const double seconds : {0.2, 1.0, 0.6, 1.4, 0.8, 0.3, 1.1}) {
    facts.units.push_back({.name = "unit",
                           .parameters = 1'000'000,
                           .output = {0, 1e5},
                           .saved = {0, 1e6},
                           .forward_peak = {0, 1.2e6},
                           .backward_peak = {0, 1.5e6},
                           .forward_s = {0, 1e-3 * seconds},
                           .backward_s = {0, 2e-3 * seconds}});
  }
  facts.state_bytes = 8;
  return facts;
}

/// Devices with these speeds and memories, each on a host of its own.
inline Cluster apart(const std::vector<double>& speeds, const std::vector<double>& memory,
                     const LinkSpeed& link) {
  std::vector<MeshDevice> devices;
  Network network;
  for (std::size_t i = 0; i < speeds.size(); ++i) {
    devices.push_back({.name = std::string(1, static_cast<char>('a' + i)),
                       .host = i,
                       .memory_bytes = memory[i],
                       .slower = 1 / speeds[i]});
    network.hosts.push_back({.name = devices.back().name, .inside = link, .uplink = link});
  }
  return {devices, network};
}

inline constexpr LinkSpeed kGigabitLink{200e-6, 125e6};
inline constexpr LinkSpeed kFastLink{5e-6, 20e9};

}  // namespace bimetal::plan
