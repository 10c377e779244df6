#include "bimetal/comm/fabric.h"

#include <utility>

namespace bimetal::comm {

Fabric::Fabric(std::unique_ptr<net::Mesh> mesh) : mesh_(std::move(mesh)), mailbox_(*mesh_) {
  mesh_->start(mailbox_);
}

Fabric::~Fabric() {
  // The mesh's thread sets alarms and the timer's thread sends: both end before either is gone.
  mesh_->close(Deadline::at(Deadline::Clock::now()));
  timer_.stop();
}

void Fabric::open_group() {
  std::lock_guard lock(mutex_);
  ++groups_;
}

void Fabric::close_group(Deadline deadline) {
  {
    std::lock_guard lock(mutex_);
    if (--groups_ > 0) return;
  }
  mesh_->close(deadline);
}

}  // namespace bimetal::comm
