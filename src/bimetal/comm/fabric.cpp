#include "bimetal/comm/fabric.h"

#include <fmt/format.h>

#include <utility>

#include "bimetal/base/error.h"
#include "bimetal/base/log.h"
#include "bimetal/base/unicode/open_file.h"
#include "bimetal/base/unicode/utf8_path.h"

namespace bimetal::comm {
namespace {

// Half of the 32 bits of a group's id for the rank, half for its count.
constexpr std::uint32_t kMaxCount = 1u << 16;

std::string place_from_environment() {
  return utf8_of_path(path_in_environment("BIMETAL_FLIGHT_RECORDER"));
}

std::string peers_of(const net::Mesh& mesh) {
  std::string text;
  for (int peer = 0; peer < mesh.size(); ++peer) {
    if (peer == mesh.rank()) continue;
    text += fmt::format("{} rank {} on {}", text.empty() ? ":" : ",", peer, mesh.host_of(peer));
  }
  return text;
}

}  // namespace

Fabric::Fabric(std::unique_ptr<net::Mesh> mesh, const std::string& flight_recorder)
    : mesh_(std::move(mesh)),
      mailbox_(*mesh_),
      recorder_(mesh_->rank(), mesh_->size(),
                FlightRecorder::file_for(
                    flight_recorder.empty() ? place_from_environment() : flight_recorder,
                    mesh_->rank())) {
  // Its thread starts with the first alarm: now, when a system that refuses one is an error, and
  // not when a group fails, on a thread that has nobody to tell.
  if (mesh_->size() > 1) timer_.at(Deadline::at(Deadline::Clock::now()), [] {});
  mesh_->start(mailbox_);
  log(LogLevel::info, "rank {} is one of {} in this job{}", mesh_->rank(), mesh_->size(),
      peers_of(*mesh_));
}

Fabric::~Fabric() {
  // The mesh's thread sets alarms and the timer's thread sends: both end before either is gone.
  mesh_->close(Deadline::at(Deadline::Clock::now()));
  timer_.stop();
}

std::uint32_t Fabric::new_group_id() {
  std::lock_guard lock(mutex_);
  const auto rank = static_cast<std::uint32_t>(mesh_->rank());
  if (rank >= kMaxCount || ++group_ids_ >= kMaxCount) {
    throw Error(ErrorCode::Unsupported,
                fmt::format("rank {} can't make more than {} groups in one job", rank, kMaxCount));
  }
  return rank * kMaxCount + group_ids_;
}

void Fabric::open_group() {
  std::lock_guard lock(mutex_);
  ++open_groups_;
}

void Fabric::close_group(Deadline deadline) {
  {
    std::lock_guard lock(mutex_);
    if (--open_groups_ > 0) return;
  }
  mesh_->close(deadline);
}

}  // namespace bimetal::comm
