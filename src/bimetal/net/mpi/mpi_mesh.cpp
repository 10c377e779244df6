#include "bimetal/net/mpi/mpi_mesh.h"

#include <fmt/format.h>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <utility>
#include <vector>

#include "bimetal/net/mpi/library.h"
#include "bimetal/net/mpi/path.h"
#include "bimetal/net/token.h"

namespace bimetal::net {
namespace {

using mpi::MpiThread;
using mpi::Path;

class MpiMesh final : public Mesh {
 public:
  explicit MpiMesh(MpiThread& mpi);
  ~MpiMesh() override;

  int rank() const noexcept override { return mpi_.world().rank; }
  int size() const noexcept override { return mpi_.world().size; }
  void start(FrameReceiver& receiver) override;
  void send(int peer, FrameHeader header, std::span<const std::byte> payload,
            SendDone done) override;
  void resume(int peer) override;
  void drop(int peer) override;
  void close(Deadline deadline) override;
  std::uint64_t bytes_sent() const noexcept override { return *bytes_sent_; }
  bool stays_on_host(int peer) const noexcept override;
  std::string host_of(int peer) const override {
    return mpi_.world().hosts.at(static_cast<std::size_t>(peer));
  }
  std::string_view carrier() const noexcept override { return "mpi"; }

 private:
  Path& path(int peer) const;
  void pass(MpiThread::Task task);
  bool shut_gate();
  void abandon_all(const Error& reason);

  MpiThread& mpi_;
  std::shared_ptr<std::atomic<std::uint64_t>> bytes_sent_ =
      std::make_shared<std::atomic<std::uint64_t>>(0);
  std::vector<std::shared_ptr<Path>> paths_;  // by rank; none to this one

  std::mutex close_mutex_;  // lets one close() at a time through
  std::mutex mutex_;        // guards the rest: what passes before shut_ reaches the thread
  std::condition_variable changed_;
  bool shut_ = false;
  int still_open_ = 0;
};

MpiMesh::MpiMesh(MpiThread& mpi) : mpi_(mpi) {
  const int tag = mpi_.next_number();
  for (int peer = 0; peer < size(); ++peer) {
    paths_.push_back(peer == rank()
                         ? nullptr
                         : std::make_shared<Path>(mpi_, peer, tag,
                                                  fmt::format("rank {} ({})", peer, host_of(peer)),
                                                  bytes_sent_));
  }
}

MpiMesh::~MpiMesh() {
  if (shut_gate()) abandon_all(Error(ErrorCode::Aborted, "the mesh was destroyed without close()"));
}

Path& MpiMesh::path(int peer) const {
  if (peer < 0 || peer >= size() || peer == rank()) {
    throw Error(ErrorCode::Internal, fmt::format("rank {} is no peer of rank {}", peer, rank()));
  }
  return *paths_[static_cast<std::size_t>(peer)];
}

/// Unless the mesh is shut. A path outlives its mesh for what MPI still has of it.
void MpiMesh::pass(MpiThread::Task task) {
  std::lock_guard lock(mutex_);
  if (!shut_) mpi_.post(std::move(task));
}

void MpiMesh::start(FrameReceiver& receiver) {
  pass([paths = paths_, &receiver] {
    for (const auto& path : paths) {
      if (path) path->start(receiver);
    }
  });
}

void MpiMesh::send(int peer, FrameHeader header, std::span<const std::byte> payload,
                   SendDone done) {
  auto to = path(peer).shared_from_this();
  {
    std::lock_guard lock(mutex_);
    if (!shut_ && mpi_.post([to, header, payload, done] { to->send(header, payload, done); })) {
      return;
    }
  }
  if (done) done(std::make_exception_ptr(Error(ErrorCode::Aborted, "the mesh is closed")));
}

void MpiMesh::resume(int peer) {
  pass([from = path(peer).shared_from_this()] { from->resume(); });
}

void MpiMesh::drop(int peer) {
  pass([lost = path(peer).shared_from_this()] { lost->drop(); });
}

bool MpiMesh::stays_on_host(int peer) const noexcept {
  const auto& hosts = mpi_.world().hosts;
  return hosts[static_cast<std::size_t>(peer)] == hosts[static_cast<std::size_t>(rank())];
}

/// False if it was shut before.
bool MpiMesh::shut_gate() {
  std::lock_guard lock(mutex_);
  return !std::exchange(shut_, true);
}

void MpiMesh::close(Deadline deadline) {
  std::lock_guard one_at_a_time(close_mutex_);
  if (!shut_gate()) return;
  still_open_ = size();  // this task itself in the place of a path to this rank
  const auto one_less = [this] {
    std::lock_guard lock(mutex_);
    --still_open_;
    changed_.notify_all();
  };
  const bool passed = mpi_.post([this, one_less] {
    for (const auto& path : paths_) {
      if (path) path->leave(one_less);
    }
    one_less();
  });
  if (!passed) return;
  {
    std::unique_lock lock(mutex_);
    if (changed_.wait_until(lock, deadline.time(), [&] { return still_open_ == 0; })) return;
  }
  abandon_all(Error(ErrorCode::Aborted, "the mesh closed before this could be sent"));
}

/// Waits for the thread, which never blocks: from then on it touches nothing of this mesh.
void MpiMesh::abandon_all(const Error& reason) {
  bool over = false;
  const bool passed = mpi_.post([this, &reason, &over] {
    for (const auto& path : paths_) {
      if (path) path->abandon(reason);
    }
    std::lock_guard lock(mutex_);
    over = true;
    changed_.notify_all();
  });
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return over || !passed; });
}

}  // namespace

bool started_by_mpi() {
  const auto launched = mpi::launch_environment();
  return launched && launched->world_size.value_or(2) > 1;
}

MpiWorld mpi_world(Deadline deadline) {
  const auto& world = MpiThread::of_process(deadline).world();
  MpiWorld place{world.rank, world.size, 0, 0, world.library};
  const auto& here = world.hosts[static_cast<std::size_t>(world.rank)];
  for (int rank = 0; rank < world.size; ++rank) {
    if (world.hosts[static_cast<std::size_t>(rank)] != here) continue;
    ++place.local_size;
    if (rank < world.rank) ++place.local_rank;
  }
  return place;
}

std::unique_ptr<Mesh> make_mpi_mesh(Deadline deadline) {
  if (encryption_from_environment() == Encryption::on) {
    throw Error(ErrorCode::InvalidArgument,
                "BIMETAL_ENCRYPTION=on is asked for, but MPI sends plain bytes; use tcp, or unset "
                "it");
  }
  return std::make_unique<MpiMesh>(MpiThread::of_process(deadline));
}

}  // namespace bimetal::net
