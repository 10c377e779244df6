#include "bimetal/comm/algorithms/dissemination.h"

namespace bimetal::comm {

void dissemination_barrier(Channel& channel) {
  for (int distance = 1; distance < channel.size(); distance *= 2) {
    const auto heard = channel.receive(channel.neighbour(-distance), {});
    channel.send(channel.neighbour(distance), {});
    channel.wait(heard);
  }
  channel.wait_sent();
}

}  // namespace bimetal::comm
