#include "bimetal/c10d/make_backend.h"

#include <fmt/format.h>

#include <optional>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <utility>

#include "bimetal/c10d/backend_error.h"
#include "bimetal/c10d/torch_store.h"
#include "bimetal/c10d/worlds.h"
#include "bimetal/comm/meet/meet.h"

namespace bimetal::c10d {
namespace {

using StorePtr = c10::intrusive_ptr<::c10d::Store>;

/// The server behind a store, as far as it has one.
std::optional<net::Endpoint> server_of(StorePtr store) {
  if (const auto* prefixed = dynamic_cast<::c10d::PrefixStore*>(store.get())) {
    store = const_cast<::c10d::PrefixStore*>(prefixed)->getUnderlyingNonPrefixStore();
  }
  const auto* tcp = dynamic_cast<::c10d::TCPStore*>(store.get());
  if (tcp == nullptr) return std::nullopt;
  return net::Endpoint{tcp->getHost(), tcp->getPort()};
}

comm::Group meet(const StorePtr& store, int rank, int size, const std::string& prefix,
                 const BackendOptions& options, std::optional<comm::Group> world) {
  const auto deadline = Deadline::after(options.timeout);
  const auto server = server_of(store);
  const std::string name =
      server ? fmt::format("torch's store at {}", net::to_string(*server)) : "torch's store";
  const auto adapted = adapt_store(store, name, comm::address_for_meeting(server));
  comm::Meeting meeting{.rank = rank, .size = size, .prefix = prefix};
  meeting.members = options.global_ranks_in_group;
  if (!meeting.members.empty()) {
    const auto own = meeting.members.at(static_cast<std::size_t>(rank));
    meeting.world = world ? std::move(world) : worlds::find(static_cast<int>(own), meeting.members);
  }
  comm::GroupOptions group;
  group.timeout = options.timeout;
  return comm::meet(*adapted, meeting, group, deadline);
}

}  // namespace

c10::intrusive_ptr<BimetalBackend> make_backend(StorePtr store, int rank, int size,
                                                c10::intrusive_ptr<BackendOptions> options,
                                                std::optional<comm::Group> world) {
  const std::string prefix = comm::prefix_for(options->group_name, rank, size);
  auto group = guarded([&] { return meet(store, rank, size, prefix, *options, std::move(world)); });
  auto own_store = c10::make_intrusive<::c10d::PrefixStore>(prefix, std::move(store));
  return c10::make_intrusive<BimetalBackend>(std::move(group), std::move(own_store),
                                             std::move(options));
}

}  // namespace bimetal::c10d
