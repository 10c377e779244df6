#pragma once
// Plans of meshes in plain words.

#include <string>

#include "bimetal/plan/mesh/mesh_plan.h"

namespace bimetal::plan {

/// "pipeline of 3 stages", "2 devices, level 1", "cuda:0 alone".
std::string describe(const Cluster& cluster, const MeshChoice& choice);

/// The job file's keys that ask for it, whatever else a job has: "mesh.stages=2, mesh.cuts=[7]", ….
std::string keys_of(const MeshChoice& choice);

/// Of a choice with tensors in parts: "sums of activations take 12.0 ms of a step, over a link of
/// 4.1 Gbit/s".
std::string sums_text(const MeshChoice& choice);

/// Why `choice` is not the one to take: what it lacks, or where its time goes. `best`: nullptr
/// where nothing fits.
std::string why_not(const Cluster& cluster, const MeshChoice& choice, const MeshChoice* best);

/// How a choice in another precision compares with the best in the job's own; nullptr: nothing fits
/// in that.
std::string beside(const MeshChoice& other, const MeshChoice* best);

/// What to do, and by how much it is better: lines.
std::string mesh_advice(const Cluster& cluster, const MeshPlan& plan);

}  // namespace bimetal::plan
