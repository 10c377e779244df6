#include "bimetal/launch/local/signal_watch.h"

#include <string>

#include "bimetal/launch/system/wait_set.h"

namespace bimetal::launch {

void SignalWatch::drain() {
  std::string ignored;
  read_available(pipe_.read, ignored);
}

void SignalWatch::pause(std::chrono::milliseconds span) {
  WaitSet signal;
  signal.add_readable(pipe_.read.number());
  signal.wait(span);
  drain();
}

}  // namespace bimetal::launch
