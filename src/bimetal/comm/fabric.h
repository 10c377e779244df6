#pragma once
// The state that all groups of one job share in one process: the mesh, its mailbox, a timer and the
// flight recorder.

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "bimetal/base/deadline.h"
#include "bimetal/comm/algorithm.h"
#include "bimetal/comm/group/executor.h"
#include "bimetal/comm/group/flight_recorder.h"
#include "bimetal/comm/mailbox/mailbox.h"
#include "bimetal/net/mesh.h"

namespace bimetal::comm {

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

}  // namespace bimetal::comm
