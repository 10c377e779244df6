#include "support/in_process_mesh.h"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

namespace bimetal::testing {
namespace {

using net::FrameHeader;
using net::FrameKind;
using net::SendDone;

struct Message {
  FrameHeader header;
  std::span<const std::byte> payload;
  SendDone done;
};

// One direction of a path, kept where it arrives.
struct Path {
  std::deque<Message> queue;
  bool paused = false;
  bool busy = false;  // the receiving thread is at the first message, without the lock
  bool said_goodbye = false;
  bool lost = false;  // nothing more arrives
  bool told = false;  // on_lost has been or is being called
};

struct Node {
  std::vector<Path> from;                                     // by rank
  std::deque<std::pair<SendDone, std::exception_ptr>> ended;  // sends, to be told on its thread
  net::FrameReceiver* receiver = nullptr;
  bool closed = false;   // sends nothing any more, and nothing is sent to it
  bool stopped = false;  // its thread ends
  std::uint64_t bytes_sent = 0;
};

std::exception_ptr gone(int rank) {
  return std::make_exception_ptr(
      Error(ErrorCode::PeerLost, "rank " + std::to_string(rank) + " is gone", rank));
}

// All ranks of one mesh, under one lock.
struct Hub {
  explicit Hub(int size) : nodes(size) {
    for (auto& node : nodes) node.from.resize(size);
  }

  int size() const { return static_cast<int>(nodes.size()); }

  // Everything queued from `sender` to `receiver` ends in an error. Under the lock; what the
  // receiving thread is reading from is waited for.
  void take_back(int sender, int receiver, std::unique_lock<std::mutex>& lock) {
    Path& path = nodes[receiver].from[sender];
    changed.wait(lock, [&] { return !path.busy; });
    for (auto& message : path.queue) {
      nodes[sender].ended.emplace_back(std::move(message.done), gone(receiver));
    }
    path.queue.clear();
    changed.notify_all();
  }

  std::mutex mutex;
  std::condition_variable changed;
  std::vector<Node> nodes;
};

class InProcessMesh : public net::Mesh {
 public:
  InProcessMesh(std::shared_ptr<Hub> hub, int rank)
      : hub_(std::move(hub)), rank_(rank), self_(hub_->nodes[rank]) {}
  ~InProcessMesh() override { end(); }

  int rank() const noexcept override { return rank_; }
  int size() const noexcept override { return hub_->size(); }

  void start(net::FrameReceiver& receiver) override {
    self_.receiver = &receiver;
    thread_ = std::thread([this] { run(); });
  }

  void send(int peer, FrameHeader header, std::span<const std::byte> payload,
            SendDone done) override {
    std::lock_guard lock(hub_->mutex);
    header.payload_bytes = payload.size();
    Path& path = hub_->nodes[peer].from[rank_];
    if (self_.closed || hub_->nodes[peer].closed || path.lost) {
      self_.ended.emplace_back(std::move(done), gone(peer));
      self_.from[peer].lost = true;
    } else {
      self_.bytes_sent += net::kFrameHeaderBytes + payload.size();
      path.queue.push_back({header, payload, std::move(done)});
    }
    hub_->changed.notify_all();
  }

  void resume(int peer) override {
    std::lock_guard lock(hub_->mutex);
    self_.from[peer].paused = false;
    hub_->changed.notify_all();
  }

  void drop(int peer) override {
    std::lock_guard lock(hub_->mutex);
    self_.from[peer].lost = true;
    hub_->nodes[peer].from[rank_].lost = true;
    hub_->changed.notify_all();
  }

  void close(Deadline deadline) override {
    {
      std::unique_lock lock(hub_->mutex);
      if (self_.closed) return;
      FrameHeader goodbye;
      goodbye.kind = FrameKind::Goodbye;
      const auto sent = [&] {
        return std::ranges::all_of(hub_->nodes, [&](const Node& node) {
          const Path& path = node.from[rank_];
          return node.closed || path.lost || path.queue.empty();
        });
      };
      for (auto& node : hub_->nodes) {
        if (&node != &self_) node.from[rank_].queue.push_back({goodbye, {}, nullptr});
      }
      hub_->changed.notify_all();
      hub_->changed.wait_until(lock, deadline.time(), sent);
    }
    end();
  }

  std::uint64_t bytes_sent() const noexcept override {
    std::lock_guard lock(hub_->mutex);
    return self_.bytes_sent;
  }

  // As if every two ranks shared a host, and hosts were connected by a network.
  std::string host_of(int peer) const override { return "host-" + std::to_string(peer / 2); }
  bool stays_on_host(int peer) const noexcept override { return peer / 2 == rank() / 2; }

 private:
  // From here on neither side of any path touches the other's memory.
  void end() {
    {
      std::unique_lock lock(hub_->mutex);
      if (std::exchange(self_.closed, true)) return;
      for (int peer = 0; peer < size(); ++peer) {
        Path& path = hub_->nodes[peer].from[rank_];
        if (!path.said_goodbye) path.lost = true;
        hub_->take_back(rank_, peer, lock);
        if (peer != rank_ && self_.receiver == nullptr) hub_->take_back(peer, rank_, lock);
      }
      self_.stopped = true;
      hub_->changed.notify_all();
    }
    if (thread_.joinable()) thread_.join();
  }

  void run() {
    std::unique_lock lock(hub_->mutex);
    while (!self_.stopped) {
      if (!step(lock)) hub_->changed.wait(lock);
    }
    for (int peer = 0; peer < size(); ++peer) hub_->take_back(peer, rank_, lock);
    while (end_one_send(lock)) {
    }
  }

  // Does one thing that is due, if any.
  bool step(std::unique_lock<std::mutex>& lock) {
    if (end_one_send(lock)) return true;
    for (int i = 0; i < size(); ++i) {
      const int peer = next_ = (next_ + 1) % size();  // in turn, so that none starves
      Path& path = self_.from[peer];
      if (path.lost && !path.told) return tell_lost(peer, path, lock);
      if (!path.lost && !path.paused && !path.queue.empty()) return deliver(peer, path, lock);
    }
    return false;
  }

  bool end_one_send(std::unique_lock<std::mutex>& lock) {
    if (self_.ended.empty()) return false;
    auto [done, error] = std::move(self_.ended.front());
    self_.ended.pop_front();
    lock.unlock();
    if (done) done(error);
    done = nullptr;
    lock.lock();
    return true;
  }

  bool tell_lost(int peer, Path& path, std::unique_lock<std::mutex>& lock) {
    path.told = true;
    hub_->take_back(peer, rank_, lock);
    hub_->take_back(rank_, peer, lock);
    lock.unlock();
    self_.receiver->on_lost(
        peer, Error(ErrorCode::PeerLost,
                    "rank " + std::to_string(peer) + " is gone: its thread has ended", peer));
    lock.lock();
    return true;
  }

  bool deliver(int peer, Path& path, std::unique_lock<std::mutex>& lock) {
    const auto [header, payload] = std::pair(path.queue.front().header, path.queue.front().payload);
    if (header.kind == FrameKind::Goodbye) {
      path.said_goodbye = true;
      path.queue.pop_front();
      hub_->changed.notify_all();
      return true;
    }
    path.busy = true;
    path.paused = true;  // until known otherwise: a resume() during on_header must not be lost
    lock.unlock();
    const auto place = self_.receiver->on_header(peer, header);
    if (!place.pause) {
      std::ranges::copy(payload, place.bytes.begin());
      self_.receiver->on_payload(peer, header);
    }
    lock.lock();
    path.busy = false;
    if (!place.pause) {
      path.paused = false;
      hub_->nodes[peer].ended.emplace_back(std::move(path.queue.front().done), nullptr);
      path.queue.pop_front();
    }
    hub_->changed.notify_all();
    return true;
  }

  const std::shared_ptr<Hub> hub_;
  const int rank_;
  Node& self_;
  int next_ = 0;
  std::thread thread_;
};

}  // namespace

std::vector<std::unique_ptr<net::Mesh>> make_in_process_meshes(int size) {
  const auto hub = std::make_shared<Hub>(size);
  std::vector<std::unique_ptr<net::Mesh>> meshes;
  for (int rank = 0; rank < size; ++rank) {
    meshes.push_back(std::make_unique<InProcessMesh>(hub, rank));
  }
  return meshes;
}

}  // namespace bimetal::testing
