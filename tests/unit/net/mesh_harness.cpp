#include "unit/net/mesh_harness.h"

#include <algorithm>
#include <future>

namespace bimetal::net::testing {

FrameReceiver::Placement Recorder::on_header(int peer, const FrameHeader& header) {
  std::lock_guard lock(mutex_);
  ++headers_;
  changed_.notify_all();
  if (paused_) return {.bytes = {}, .pause = true};
  std::string& place = places_[peer];
  place.assign(header.payload_bytes, '\0');
  return {.bytes = std::as_writable_bytes(std::span(place.data(), place.size())), .pause = false};
}

void Recorder::on_payload(int peer, const FrameHeader& header) {
  std::lock_guard lock(mutex_);
  arrivals_.push_back({peer, header, std::move(places_[peer])});
  changed_.notify_all();
}

void Recorder::on_lost(int peer, const Error& error) {
  std::lock_guard lock(mutex_);
  losses_.emplace_back(peer, error);
  changed_.notify_all();
}

bool Recorder::wait_for(std::size_t arrivals) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, kPatience, [&] { return arrivals_.size() >= arrivals; });
}

bool Recorder::wait_for_headers(int calls) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, kPatience, [&] { return headers_ >= calls; });
}

std::optional<Error> Recorder::wait_for_loss(int peer) {
  std::unique_lock lock(mutex_);
  std::optional<Error> found;
  changed_.wait_for(lock, kPatience, [&] {
    for (const auto& [lost, error] : losses_) {
      if (lost == peer) found = error;
    }
    return found.has_value();
  });
  return found;
}

std::vector<Arrival> Recorder::arrivals() const {
  std::lock_guard lock(mutex_);
  return arrivals_;
}

int Recorder::losses(int peer) const {
  std::lock_guard lock(mutex_);
  return static_cast<int>(std::count_if(losses_.begin(), losses_.end(),
                                        [&](const auto& l) { return l.first == peer; }));
}

int Recorder::headers() const {
  std::lock_guard lock(mutex_);
  return headers_;
}

void Recorder::pause(bool on) {
  std::lock_guard lock(mutex_);
  paused_ = on;
}

std::vector<std::unique_ptr<Mesh>> connect_ranks(int size, const TcpMeshOptions& options) {
  std::vector<std::unique_ptr<TcpMeshBuilder>> builders;
  std::vector<std::vector<Endpoint>> endpoints;
  for (int rank = 0; rank < size; ++rank) {
    builders.push_back(std::make_unique<TcpMeshBuilder>(rank, size, options));
    endpoints.push_back(builders.back()->listening());
  }
  std::vector<std::future<std::unique_ptr<Mesh>>> connecting;
  for (auto& builder : builders) {
    connecting.push_back(std::async(std::launch::async, [&builder, &endpoints] {
      return std::move(*builder).connect(endpoints, soon());
    }));
  }
  std::vector<std::unique_ptr<Mesh>> meshes;
  for (auto& mesh : connecting) meshes.push_back(mesh.get());
  return meshes;
}

std::exception_ptr send_and_wait(Mesh& mesh, int peer, const std::string& text,
                                 std::uint64_t sequence) {
  // Shared: the mesh's thread is still within set_value when get() returns.
  const auto done = std::make_shared<std::promise<std::exception_ptr>>();
  mesh.send(peer, data_header(sequence), bytes_of(text),
            [done](std::exception_ptr error) { done->set_value(std::move(error)); });
  return done->get_future().get();
}

FrameHeader data_header(std::uint64_t sequence) {
  FrameHeader header;
  header.kind = FrameKind::Data;
  header.sequence = sequence;
  return header;
}

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

}  // namespace bimetal::net::testing
