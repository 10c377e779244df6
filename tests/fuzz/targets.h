#pragma once
// What is fuzzed: each of these takes any bytes as a peer might send them. It returns when they
// have been refused or taken as they should be; whatever else happens is for the sanitizers, and
// abort() for a broken promise. libfuzzer_main.cpp makes a libFuzzer program of each;
// replay_test.cpp runs the corpus through all of them with any compiler.

#include <cstddef>
#include <cstdlib>
#include <span>

namespace bimetal::fuzz {

using Bytes = std::span<const std::byte>;

void abort_message(Bytes bytes);   ///< comm: payload of an Abort frame
void agent_message(Bytes bytes);   ///< launch: what a launcher and its agents say
void data_copy(Bytes bytes);       ///< data: what a machine says of its copy
void frame(Bytes bytes);           ///< net: header of a frame, as it comes and with a good checksum
void handshake(Bytes bytes);       ///< net: every message of the handshake
void http_message(Bytes bytes);    ///< net/http: heads of requests and answers
void mailbox(Bytes bytes);         ///< comm: frames with good checksums and any contents
void member_record(Bytes bytes);   ///< rendezvous: what a rank publishes about itself
void noise(Bytes bytes);           ///< net: the encryption handshake and records after it
void server_message(Bytes bytes);  ///< parallel: bodies of servers and workers
void serving_message(Bytes bytes);  ///< serving: every body of both sides
void slurm_list(Bytes bytes);       ///< launch: Slurm's lists of nodes and tasks
void store_message(Bytes bytes);    ///< rendezvous: header and body of a store's message

/// Not assert(), which a release build leaves out.
inline void promise(bool kept) {
  if (!kept) std::abort();
}

}  // namespace bimetal::fuzz
