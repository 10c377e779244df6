#include "bimetal/launch/local/lifeline.h"

#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <thread>
#include <utility>

#include "bimetal/launch/local/pipe.h"
#include "bimetal/launch/local/status_pipe.h"

namespace bimetal::launch {

void watch_lifeline(int exit_status) {
  auto lifeline = inherited_descriptor(kLifelineVariable);
  if (!lifeline) return;
  std::thread([lifeline = std::move(lifeline), exit_status] {
    char byte = 0;
    while (::read(lifeline.number(), &byte, 1) < 0 && errno == EINTR) {
    }
    ::_exit(exit_status);
  }).detach();
}

}  // namespace bimetal::launch
