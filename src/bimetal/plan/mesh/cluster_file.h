#pragma once
// Clusters that a TOML file describes, without being there: docs/planning.md lists the keys.

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "bimetal/plan/mesh/cluster.h"
#include "bimetal/plan/mesh/mesh_plan.h"

namespace bimetal::plan {

struct DescribedCluster {
  std::vector<MeshDevice> devices = {};  ///< `slower` is that of a device of 1 TFLOP/s
  Network network = {};
  std::optional<ModelFacts> model = {};  ///< of its [model]; seconds of a device of 1 TFLOP/s
  std::int64_t global_batch = 0;         ///< of its [model]; 0: the job's
};

/// Error(InvalidArgument) naming `origin`, the line and what is wrong with it.
DescribedCluster parse_cluster(std::string_view text, const std::string& origin);

/// Error(System) where it cannot be read.
DescribedCluster read_cluster(const std::filesystem::path& path);

}  // namespace bimetal::plan
