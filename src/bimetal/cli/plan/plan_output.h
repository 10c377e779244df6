#pragma once
// The output of `bimetal plan`: a measured plan, its memory and its meshes as text, as JSON and as
// pictures. docs/planning.md describes each field of the JSON.

#include <cstddef>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "bimetal/cli/rank/rank_request.h"
#include "bimetal/cli/terminal.h"
#include "bimetal/plan/memory/memory_plan.h"
#include "bimetal/plan/mesh/mesh_plan.h"

namespace bimetal::train {
struct MeasuredPlan;
}

namespace bimetal::cli {

/// The verdict in two lines, and what fits how; with `details` also the workers, their link, and a
/// prediction for each way to run the job.
void print_plan(Terminal& terminal, const train::MeasuredPlan& plan, bool details);
nlohmann::json plan_json(const train::MeasuredPlan& plan);

/// Advice; before it, with `details`, each rank's needs as the job file has it, by kind, and every
/// way to keep the job, whether it fits and how much it adds to a step.
void print_memory(Terminal& terminal, const plan::MemoryInput& input, const plan::MemoryPlan& plan,
                  bool details);
nlohmann::json memory_json(const plan::MemoryInput& input, const plan::MemoryPlan& plan);

/// Advice; before it, with `details`, the job's own, the best few, those that do not fit, and
/// pictures.
void print_mesh(Terminal& terminal, const plan::MeshProblem& on, const plan::MeshPlan& plan,
                bool details);
nlohmann::json mesh_json(const plan::MeshProblem& on, const plan::MeshPlan& plan);

/// A step of the best one, as SVG. Errors: InvalidArgument where nothing fits, System.
void write_timeline(const plan::MeshProblem& on, const plan::MeshPlan& plan,
                    const std::filesystem::path& path);

/// `bimetal plan --simulate FILE`: plans for the cluster that it describes. `measured`: facts of
/// the job's model on this machine, which makes so many operations a second; nullptr: the file has
/// a [model]. Prints JSON or text. Errors: read_cluster()'s.
void simulate_cluster(const PlanOutput& output, const plan::MeshInput* measured, double teraflops);

/// Parameters of one of the devices of a stage, and operations of a step: 0 without samples, too.
/// Devices with tensors in parts have theirs of each.
struct DeviceWork {
  double elements = 0, operations = 0;
  bool counted = false;  ///< a sample takes some, as far as known
};
DeviceWork work_of(const plan::MeshProblem& on, const plan::MeshChoice& choice, std::size_t stage,
                   std::size_t device);

/// As `bimetal train` prints it, ranks being numbered in the order of the stages: for each stage
/// its ranks, its units, each rank's part and work, and the workers. Empty for a model that is not
/// cut, or more devices than can be looked over.
std::string picture_of(const plan::MeshProblem& on, const plan::MeshChoice& choice);

}  // namespace bimetal::cli
