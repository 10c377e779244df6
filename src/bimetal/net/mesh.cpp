#include "bimetal/net/mesh.h"

#include <fmt/format.h>

#include <bit>
#include <utility>

namespace bimetal::net {
namespace {

class SoloMesh final : public Mesh {
 public:
  explicit SoloMesh(std::string host_name) : host_name_(std::move(host_name)) {}

  int rank() const noexcept override { return 0; }
  int size() const noexcept override { return 1; }
  void start(FrameReceiver&) override {}
  void send(int peer, FrameHeader, std::span<const std::byte>, SendDone) override { refuse(peer); }
  void resume(int peer) override { refuse(peer); }
  void drop(int peer) override { refuse(peer); }
  void close(Deadline) override {}
  std::uint64_t bytes_sent() const noexcept override { return 0; }
  std::string host_of(int) const override { return host_name_; }

 private:
  [[noreturn]] static void refuse(int peer) {
    throw Error(ErrorCode::Internal,
                fmt::format("rank {} is no peer: this mesh has one rank", peer));
  }

  std::string host_name_;
};

}  // namespace

bool near_on_ring(int a, int b, int size) noexcept {
  const auto steps = static_cast<unsigned>((b - a + size) % size);
  return std::has_single_bit(steps) || std::has_single_bit(static_cast<unsigned>(size) - steps);
}

std::unique_ptr<Mesh> make_solo_mesh(std::string host_name) {
  return std::make_unique<SoloMesh>(std::move(host_name));
}

}  // namespace bimetal::net
