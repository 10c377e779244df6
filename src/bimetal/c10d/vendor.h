#pragma once
// The vendor library of this build, if it has one: ProcessGroupNCCL, which is NCCL in libtorch for
// CUDA and RCCL in libtorch for ROCm. A build without either compiles vendor_none.cpp.

#include <torch/csrc/api/include/torch/types.h>

#include <chrono>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "bimetal/c10d/island.h"
#include "bimetal/comm/group.h"

namespace bimetal::c10d {

/// What this rank has to offer for `device`; Vendor::none where no vendor library of this build
/// serves it.
VendorOffer vendor_offer(const torch::Device& device);

/// Joins the members' devices, in their order. Collective. Errors: Unsupported in a build without a
/// vendor library; System with the library's words.
c10::intrusive_ptr<::c10d::Backend> connect_vendor(comm::Group members, const torch::Device& device,
                                                   std::chrono::milliseconds timeout);

/// Both together, for what asks for a vendor library.
VendorLibrary vendor_library(const torch::Device& device, std::chrono::milliseconds timeout);

}  // namespace bimetal::c10d
