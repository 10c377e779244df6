#pragma once
// The facts of a plan on each rank's device.

#include <torch/csrc/api/include/torch/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "bimetal/base/deadline.h"
#include "bimetal/comm/group.h"
#include "bimetal/plan/link_probe.h"
#include "bimetal/train/trainer.h"

namespace bimetal::train {

/// One rank's device. Speeds are 0 where the device could not be measured.
struct RankDevice {
  std::string host;
  std::string worker;  ///< as asked for: "cpu:threads=1"
  std::string device;  ///< as found: "cpu", "cuda:0"
  std::string name;    ///< "AMD EPYC 7B13"
  std::uint64_t memory_free_bytes = 0;
  double matmul_float32_gflops = 0;
  double matmul_half_gflops = 0;  ///< as device/probe.h has it
  bool has_graphs = false;        ///< what train.graphs asks for: device/graph.h
  bool may_be_lower = false;      ///< it computes in float32 by default, and could in bfloat16
  double convolution_float32_gflops = 0;
  double memory_bytes_per_s = 0;
  plan::HostCopies copies = {};  ///< for data to other ranks through its host's memory
};

/// Without speeds and the like but those of copies; with them, which takes about half a second.
RankDevice named_device(const torch::Device& device, const TrainerOptions& options);
RankDevice measured_device(const torch::Device& device, const TrainerOptions& options);

/// By rank. Collective.
std::vector<RankDevice> gather_devices(comm::Group group, RankDevice mine, Deadline deadline);

/// A worker's name in advice: as it was asked for, or as its device turned out to be; with its
/// machine if there are several.
std::string short_name(const RankDevice& device, const std::vector<RankDevice>& all);

}  // namespace bimetal::train
