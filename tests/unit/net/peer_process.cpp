#include "unit/net/peer_process.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>

#include "unit/net/mesh_harness.h"

namespace bimetal::net::testing {
namespace {

// A process that its test forgot ends by itself.
constexpr unsigned kLifetimeSeconds = 100;

std::uint16_t read_port(int fd) {
  std::uint16_t port = 0;
  if (::read(fd, &port, sizeof(port)) != sizeof(port)) std::abort();
  return port;
}

void write_port(int fd, std::uint16_t port) {
  if (::write(fd, &port, sizeof(port)) != sizeof(port)) std::abort();
}

}  // namespace

PeerProcess::PeerProcess(const Life& life) {
  if (::pipe(to_child_) != 0 || ::pipe(from_child_) != 0) std::abort();
  child_ = ::fork();
  if (child_ != 0) return;
  ::alarm(kLifetimeSeconds);
  TcpMeshBuilder builder(1, 2, {});
  write_port(from_child_[1], builder.listening().front().port);
  const Endpoint zero{"127.0.0.1", read_port(to_child_[0])};
  const auto mesh = std::move(builder).connect({{zero}, {}}, soon());
  life(*mesh);
  ::_exit(0);
}

PeerProcess::~PeerProcess() {
  signal(SIGKILL);
  int status = 0;
  ::waitpid(child_, &status, 0);
  for (const int fd : {to_child_[0], to_child_[1], from_child_[0], from_child_[1]}) ::close(fd);
}

std::unique_ptr<Mesh> PeerProcess::connect(TcpMeshOptions options) {
  TcpMeshBuilder builder(0, 2, std::move(options));
  const Endpoint one{"127.0.0.1", read_port(from_child_[0])};
  write_port(to_child_[1], builder.listening().front().port);
  return std::move(builder).connect({{}, {one}}, soon());
}

void PeerProcess::signal(int number) const {
  ::kill(child_, number);
}

}  // namespace bimetal::net::testing
