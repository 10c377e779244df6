#pragma once
// N ranks as threads of one process, for tests.

#include <functional>
#include <memory>
#include <vector>

#include "bimetal/comm/group.h"
#include "bimetal/net/mesh.h"

namespace bimetal::testing {

using RankBody = std::function<void(int rank, comm::Group group)>;

/// The world group of each rank, over meshes that are connected already.
std::vector<comm::Group> make_groups(std::vector<std::unique_ptr<net::Mesh>> meshes,
                                     comm::GroupOptions options = {});
/// The same with options of each rank's own.
std::vector<comm::Group> make_groups(std::vector<std::unique_ptr<net::Mesh>> meshes,
                                     const std::vector<comm::GroupOptions>& options);

/// One world group per rank, over an in-process mesh. groups[r] is rank r's.
std::vector<comm::Group> make_thread_groups(int n, comm::GroupOptions options = {});

/// The same over real TCP connections on the loopback interface. With `large` not all ranks are
/// connected from the start, as in a large world.
std::vector<comm::Group> make_tcp_groups(int n, comm::GroupOptions options = {},
                                         bool large = false);
std::vector<std::unique_ptr<net::Mesh>> make_tcp_meshes(int n, bool large = false);

/// Runs `body(rank, group)` for each rank on a thread of its own and joins them. A rank that throws
/// drops its group, by which the others end too; the error thrown first is rethrown here.
void run_ranks(int n, const RankBody& body, comm::GroupOptions options = {});
void run_ranks(std::vector<comm::Group> groups, const RankBody& body);

}  // namespace bimetal::testing
