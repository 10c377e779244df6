#pragma once
// The fuzz targets: each takes any bytes as a peer might send them. It returns when they have been
// refused or taken as they should be. The sanitizers find anything else, and a broken promise ends
// in abort(). libfuzzer_main.cpp makes a libFuzzer program of each; replay_test.cpp runs the corpus
// through all of them with any compiler. Those of file_targets.cpp read files and stand on
// libtorch, with which libFuzzer cannot search: they are replayed alone.

#include <cstddef>
#include <cstdlib>
#include <span>

namespace bimetal::fuzz {

using Bytes = std::span<const std::byte>;

void abort_message(Bytes bytes);   ///< comm: payload of an Abort frame
void agent_message(Bytes bytes);   ///< launch: what a launcher and its agents say
void data_copy(Bytes bytes);       ///< data: what a machine says of its copy
void exchange_sizes(Bytes bytes);  ///< comm: how many bytes each rank says it will send
void frame(Bytes bytes);           ///< net: header of a frame, as it comes and with a good checksum
void handshake(Bytes bytes);       ///< net: every message of the handshake
void http_message(Bytes bytes);    ///< net/http: heads of requests and answers
void mailbox(Bytes bytes);         ///< comm: frames with good checksums and any contents
void member_record(Bytes bytes);   ///< rendezvous: what a rank publishes about itself
void noise(Bytes bytes);           ///< net: the encryption handshake and records after it
void pairing_message(Bytes bytes);  ///< net/pairing: bodies of host and guest, shares of the code
void server_message(Bytes bytes);   ///< parallel: bodies of servers and workers
void serving_message(Bytes bytes);  ///< serving: every body of both sides
void slurm_list(Bytes bytes);       ///< launch: Slurm's lists of nodes and tasks
void shm_offer(Bytes bytes);        ///< comm: where a rank says that its shared memory is
void step_record(Bytes bytes);      ///< parallel: a step as server 0's stand-in is told of it
void store_message(Bytes bytes);    ///< rendezvous: header and body of a store's message

void deepspeed_file(Bytes bytes);  ///< job: DeepSpeed's configuration
void idx_file(Bytes bytes);        ///< data: IDX, plain or gzipped
void job_file(Bytes bytes);        ///< job: TOML
void manifest(Bytes bytes);  ///< checkpoint: state and index of slices, without their checksum
void safetensors_file(Bytes bytes);  ///< checkpoint: header and data
void token_file(Bytes bytes);        ///< data: header, tokens, documents' ends

struct Target {
  const char* name;
  void (*run)(Bytes);
};

/// Those of the program that this is linked into.
std::span<const Target> targets();

/// Not assert(), which a release build leaves out.
inline void promise(bool kept) {
  if (!kept) std::abort();
}

}  // namespace bimetal::fuzz
