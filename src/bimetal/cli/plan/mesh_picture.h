#pragma once
// A planned mesh as a picture.

#include <cstddef>
#include <string>

#include "bimetal/plan/mesh/mesh_plan.h"

namespace bimetal::cli {

/// Parameters of one of the devices of a stage, and operations of a step: 0 without samples, too.
/// Devices with tensors in parts have theirs of each.
struct DeviceWork {
  double elements = 0, operations = 0;
  bool counted = false;  ///< a sample takes some, as far as known
};
DeviceWork work_of(const plan::MeshInput& input, const plan::Cluster& cluster,
                   const plan::MeshChoice& choice, std::size_t stage, std::size_t device);

/// As `bimetal train` prints it, ranks being numbered in the order of the stages: of each stage its
/// ranks, its units, what each rank keeps and computes, and which workers these are. Empty for a
/// model that is not cut, or more devices than can be looked over.
std::string picture_of(const plan::MeshInput& input, const plan::Cluster& cluster,
                       const plan::MeshChoice& choice);

}  // namespace bimetal::cli
