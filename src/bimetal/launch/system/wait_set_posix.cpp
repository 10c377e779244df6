#include <poll.h>

#include <vector>

#include "bimetal/launch/system/wait_set.h"

namespace bimetal::launch {

struct WaitSet::Entries {
  std::vector<pollfd> list;
};

WaitSet::WaitSet() : entries_(std::make_unique<Entries>()) {}
WaitSet::~WaitSet() = default;

void WaitSet::add_readable(int descriptor) {
  entries_->list.push_back({descriptor, POLLIN, 0});
}

void WaitSet::add_writable(int descriptor) {
  entries_->list.push_back({descriptor, POLLOUT, 0});
}

void WaitSet::wait(std::chrono::milliseconds most) {
  ::poll(entries_->list.data(), static_cast<nfds_t>(entries_->list.size()),
         static_cast<int>(most.count()));
}

}  // namespace bimetal::launch
