// Compiled where libtorch has ProcessGroupNCCL (CUDA: NCCL; ROCm: RCCL under the same names). Not
// yet run on any device; builds without CUDA compile it in make portability.
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAFunctions.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>
#include <vector>

#include "bimetal/base/error.h"
#include "bimetal/base/files.h"
#include "bimetal/c10d/island.h"

namespace bimetal::c10d {
namespace {

#ifdef USE_ROCM
constexpr Vendor kVendor = Vendor::rccl;
#else
constexpr Vendor kVendor = Vendor::nccl;
#endif

struct OwnFolder {
  TemporaryPath folder{std::filesystem::temp_directory_path() / "bimetal-island",
                       TemporaryPath::Kind::folder};
};

/// The leader's: its folder goes when the file in it has been closed.
class LeaderStore final : private OwnFolder, public ::c10d::FileStore {
 public:
  explicit LeaderStore(int size) : ::c10d::FileStore((folder.path() / "store").string(), size) {}
  std::string place() const { return (folder.path() / "store").string(); }
};

/// A file that the leader names and the members, who share its host, find.
c10::intrusive_ptr<::c10d::Store> meet_in_file(comm::Group& members) {
  std::vector<std::uint8_t> name(4096);
  c10::intrusive_ptr<LeaderStore> own;
  if (members.rank() == 0) {
    own = c10::make_intrusive<LeaderStore>(members.size());
    const std::string place = own->place();
    if (place.size() >= name.size()) {
      throw Error(ErrorCode::System, fmt::format("{} is too long a path", place));
    }
    std::ranges::copy(place, name.begin());
  }
  members.broadcast(comm::buffer(name), 0).wait();
  if (own) return own;
  return c10::make_intrusive<::c10d::FileStore>(reinterpret_cast<const char*>(name.data()),
                                                members.size());
}

}  // namespace

VendorOffer vendor_offer(const torch::Device& device) {
  if (!device.is_cuda()) return {};
  VendorOffer offer{kVendor, {}};
  const auto index = device.has_index() ? device.index() : c10::cuda::current_device();
  const auto* properties = at::cuda::getDeviceProperties(index);
  static_assert(sizeof(properties->uuid) >= sizeof(offer.device));
  std::memcpy(offer.device.data(), &properties->uuid, offer.device.size());
  return offer;
}

c10::intrusive_ptr<::c10d::Backend> connect_vendor(comm::Group members, const torch::Device& device,
                                                   std::chrono::milliseconds timeout) {
  const auto store = meet_in_file(members);
  auto options = ::c10d::ProcessGroupNCCL::Options::create();
  options->timeout = timeout;
  auto group =
      c10::make_intrusive<::c10d::ProcessGroupNCCL>(store, members.rank(), members.size(), options);
  group->eagerConnectSingleDevice(device);
  members.barrier().wait();
  return group;
}

}  // namespace bimetal::c10d
