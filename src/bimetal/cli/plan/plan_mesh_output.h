#pragma once
// Planned meshes as a table, as JSON and as a picture.

#include <filesystem>
#include <nlohmann/json.hpp>

#include "bimetal/cli/terminal.h"
#include "bimetal/plan/mesh/mesh_plan.h"

namespace bimetal::cli {

/// Advice; before it, with `details`, the job's own, the best few, those that do not fit, and
/// pictures.
void print_mesh(Terminal& terminal, const plan::MeshInput& input, const plan::Cluster& cluster,
                const plan::MeshPlan& plan, bool details);

/// The same figures; docs/planning.md describes each field.
nlohmann::json mesh_json(const plan::MeshInput& input, const plan::Cluster& cluster,
                         const plan::MeshPlan& plan);

/// A step of the best one, as SVG. Errors: InvalidArgument where nothing fits, System.
void write_timeline(const plan::MeshInput& input, const plan::Cluster& cluster,
                    const plan::MeshPlan& plan, const std::filesystem::path& path);

/// `bimetal plan --simulate FILE`: plans for the cluster that it describes. `measured`: facts of
/// the job's model on this machine, which makes so many operations a second; nullptr: the file has
/// a [model]. Returns what is printed in `json`, or prints tables. Errors: read_cluster()'s.
struct Simulated {
  std::filesystem::path cluster, timeline;  ///< timeline: empty: none
  bool json = false, details = false;
};
void simulate_cluster(const Simulated& request, const plan::MeshInput* measured, double teraflops);

}  // namespace bimetal::cli
