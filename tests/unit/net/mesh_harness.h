#pragma once
// Shared by the mesh tests: a receiver that records, and meshes whose ranks are in one process.

#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "bimetal/net/mesh.h"
#include "bimetal/net/tcp/tcp_mesh.h"

namespace bimetal::net::testing {

/// Generous: tests run beside others on small machines.
inline constexpr std::chrono::seconds kPatience{20};
inline Deadline soon() {
  return Deadline::after(kPatience);
}

struct Arrival {
  int peer;
  FrameHeader header;
  std::string payload;
};

class Recorder : public FrameReceiver {
 public:
  Placement on_header(int peer, const FrameHeader& header) override;
  void on_payload(int peer, const FrameHeader& header) override;
  void on_lost(int peer, const Error& error) override;

  /// False if that many frames have not arrived in time.
  bool wait_for(std::size_t arrivals);
  /// False if on_header has not been called that often in time.
  bool wait_for_headers(int calls);
  /// Waits for the loss of `peer`.
  std::optional<Error> wait_for_loss(int peer);

  std::vector<Arrival> arrivals() const;
  int losses(int peer) const;
  int headers() const;  ///< calls of on_header
  bool has_lost(int peer) const { return losses(peer) > 0; }
  void pause(bool on);

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::map<int, std::string> places_;
  std::vector<Arrival> arrivals_;
  std::vector<std::pair<int, Error>> losses_;
  int headers_ = 0;
  bool paused_ = false;
};

/// Connects `size` ranks on loopback, each set up by a thread of its own.
std::vector<std::unique_ptr<Mesh>> connect_ranks(int size, const TcpMeshOptions& options = {});

/// Sends `text`, which must outlive the returned future's completion, and says how that ended.
std::exception_ptr send_and_wait(Mesh& mesh, int peer, const std::string& text,
                                 std::uint64_t sequence = 0);

/// A header of kind Data with this sequence number.
FrameHeader data_header(std::uint64_t sequence);

std::span<const std::byte> bytes_of(const std::string& text);

}  // namespace bimetal::net::testing
