#include "bimetal/optim/offload/disk_traffic.h"

namespace bimetal::optim {

void TransferMeter::begin() {
  const std::lock_guard lock(mutex_);
  if (running_++ == 0) since_ = Clock::now();
}

void TransferMeter::end(std::uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  total_.bytes += bytes;
  if (--running_ > 0) return;
  total_.seconds += std::chrono::duration<double>(Clock::now() - since_).count();
}

Transferred TransferMeter::total() const {
  const std::lock_guard lock(mutex_);
  return total_;
}

}  // namespace bimetal::optim
