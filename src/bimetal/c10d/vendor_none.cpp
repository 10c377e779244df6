#include "bimetal/base/error.h"
#include "bimetal/c10d/island.h"

namespace bimetal::c10d {

VendorOffer vendor_offer(const torch::Device&) {
  return {};
}

c10::intrusive_ptr<::c10d::Backend> connect_vendor(comm::Group, const torch::Device&,
                                                   std::chrono::milliseconds) {
  throw Error(ErrorCode::Unsupported, "no vendor library in this build: libtorch here is for CPUs");
}

}  // namespace bimetal::c10d
