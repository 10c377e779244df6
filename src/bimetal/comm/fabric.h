#pragma once
// What all groups of one job share in one process: the mesh, its mailbox, a timer and the flight
// recorder.

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "bimetal/base/deadline.h"
#include "bimetal/comm/group/executor.h"
#include "bimetal/comm/group/flight_recorder.h"
#include "bimetal/comm/mailbox/mailbox.h"
#include "bimetal/net/mesh.h"

namespace bimetal::comm {

// Which ranks of a group share memory.

/// The one of `islands` that holds `rank`; each rank is in exactly one.
const std::vector<int>& island_of(const std::vector<std::vector<int>>& islands, int rank);

/// The first rank of each island, which stands for it where one is enough.
std::vector<int> first_ranks(const std::vector<std::vector<int>>& islands);

/// The same on all ranks of a group. Every rank is in exactly one island, maybe alone.
struct Topology {
  std::vector<std::vector<int>> islands;  ///< ranks of the group, ascending, by their lowest rank

  const std::vector<int>& island_of(int rank) const { return comm::island_of(islands, rank); }
  bool one_island() const noexcept { return islands.size() == 1; }

  /// From who could open whose memory: sees[a][b]. Ranks are together if all of them see each
  /// other and see the same others besides; in doubt a rank is alone.
  static Topology from(const std::vector<std::vector<bool>>& sees);
};

class Fabric {
 public:
  /// `flight_recorder`: see GroupOptions.
  Fabric(std::unique_ptr<net::Mesh> mesh, const std::string& flight_recorder,
         std::uint32_t epoch = 0);
  ~Fabric();
  Fabric(const Fabric&) = delete;
  Fabric& operator=(const Fabric&) = delete;

  net::Mesh& mesh() noexcept { return *mesh_; }
  Mailbox& mailbox() noexcept { return mailbox_; }
  Timer& timer() noexcept { return timer_; }
  FlightRecorder& recorder() noexcept { return recorder_; }

  /// A group id that no other call on any rank gives: this rank and a count. 0 is the world.
  std::uint32_t new_group_id();

  /// Each open group holds the mesh open; the last one that leaves closes it by the deadline.
  /// Thread-safe.
  void open_group();
  void close_group(Deadline deadline);

 private:
  std::unique_ptr<net::Mesh> mesh_;
  Mailbox mailbox_;
  FlightRecorder recorder_;
  Timer timer_;
  std::mutex mutex_;
  int open_groups_ = 0;
  std::uint32_t group_ids_ = 0;
};

// What carries the data of collectives.

enum class Transport : std::uint8_t {
  automatic = 0,  ///< shared memory where all ranks of a group have some in common, else the mesh
  tcp = 1,        ///< the connections between the ranks
  shm = 2,        ///< shared memory; Error(Unsupported) where ranks have none in common
  mpi = 3,        ///< MPI's messages; for ranks that mpirun has started
};

/// "auto", "tcp", "shm" or "mpi".
std::string_view to_string(Transport transport) noexcept;

/// `asked`, or what the environment variable BIMETAL_TRANSPORT says where that leaves it open.
/// Error(InvalidArgument) for a value that is none of these.
Transport transport_for(Transport asked);

/// The transport of that name. Error(InvalidArgument) naming `where` the name comes from.
Transport transport_of(std::string_view name, std::string_view where);

/// `asked`, or what the environment variable BIMETAL_ISLAND says where that is empty.
std::string island_for(std::string asked);

}  // namespace bimetal::comm
