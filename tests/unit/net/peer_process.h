#pragma once
// Rank 1 of a world of two as a process of its own, to be stopped and killed.

#include <sys/types.h>

#include <functional>
#include <memory>

#include "bimetal/net/tcp/tcp_mesh.h"

namespace bimetal::net::testing {

class PeerProcess {
 public:
  /// The process's work once connected; it is then stopped by a signal, or exits with 0.
  using Life = std::function<void(Mesh&)>;

  /// Forks: to be called while this process has one thread.
  explicit PeerProcess(const Life& life);
  /// Kills and reaps it.
  ~PeerProcess();
  PeerProcess(const PeerProcess&) = delete;
  PeerProcess& operator=(const PeerProcess&) = delete;

  /// Rank 0's mesh.
  std::unique_ptr<Mesh> connect(TcpMeshOptions options = {});

  void signal(int number) const;

 private:
  int to_child_[2];
  int from_child_[2];
  pid_t child_;
};

}  // namespace bimetal::net::testing
