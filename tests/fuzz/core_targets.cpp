// The targets that need no libtorch: libFuzzer searches in each of them, too.

#include "fuzz/targets.h"

namespace bimetal::fuzz {

std::span<const Target> targets() {
  static constexpr Target all[] = {
      {"abort_message", abort_message},
      {"agent_message", agent_message},
      {"data_copy", data_copy},
      {"exchange_sizes", exchange_sizes},
      {"frame", frame},
      {"handshake", handshake},
      {"http_message", http_message},
      {"mailbox", mailbox},
      {"member_record", member_record},
      {"noise", noise},
      {"pairing_message", pairing_message},
      {"server_message", server_message},
      {"serving_message", serving_message},
      {"shm_offer", shm_offer},
      {"slurm_list", slurm_list},
      {"step_record", step_record},
      {"store_message", store_message},
  };
  return all;
}

}  // namespace bimetal::fuzz
