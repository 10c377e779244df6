#pragma once
// From a world of ranks to islands.

#include <chrono>
#include <functional>
#include <memory>

#include "bimetal/c10d/island.h"
#include "bimetal/c10d/island_plan.h"

namespace bimetal::c10d {

/// How the ranks of an island get their vendor library: connect_vendor, or a test's own.
using ConnectVendor = std::function<BackendPtr(comm::Group members)>;

/// Collective over `world`: who shares a vendor library with whom? Empty on every rank if nobody
/// does: the fabric alone serves all of them then. Errors: those of the fabric and of `connect`, on
/// every rank.
std::shared_ptr<Island> form_islands(comm::Group world, const torch::Device& device,
                                     const VendorOffer& offer, const ConnectVendor& connect);

/// The same with the vendor library of this build.
std::shared_ptr<Island> form_islands(comm::Group world, const torch::Device& device,
                                     std::chrono::milliseconds timeout);

}  // namespace bimetal::c10d
