#pragma once
// The messages between workers and servers after the handshake: frames of net/frame.h whose
// `operation` is a MessageKind. docs/protocol.md lists the layouts. Bodies are decoded with bounded
// lengths, and throw Error(CorruptData) if anything does not fit.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "bimetal/base/error.h"
#include "bimetal/parallel/server/ledger/ledger.h"
#include "bimetal/progress/rank_log.h"

namespace bimetal::parallel::server {

/// The numeric values are part of the wire format and never change.
enum class MessageKind : std::uint8_t {
  join = 1,     ///< client → server, once, first. Body: Join
  welcome = 2,  ///< server → client: admitted. Body: Welcome
  refused = 3,  ///< either way: the sender ends the connection. Body: Refused
  pull = 4,  ///< worker → server: the parameters, at least version `sequence`; `epoch`: the term;
             ///< `compression`: how the pieces are to be written; `count`: the bits of a double,
             ///< how many steps ahead of that version they are wanted
  piece = 5,      ///< server → worker: piece `part` of version `sequence`, so written. Bulk
  pulled = 6,     ///< server → worker: all its pieces of version `sequence` have been sent
  push = 7,       ///< worker → server: the gradient of piece `part` for lease `sequence`. Bulk
  push_end = 8,   ///< worker → server: `count` pieces have been pushed for lease `sequence`
  done = 9,       ///< worker → coordinator: lease `sequence` is computed. Body: Done
  lease = 10,     ///< coordinator → worker: work. Body: Lease
  staged = 11,    ///< server → coordinator: lease `sequence` is whole; `count` is 0 if not finite
  apply = 12,     ///< coordinator → server: the update to version `sequence`. Body: Apply
  drop = 13,      ///< coordinator → server: forget lease `sequence`
  snapshot = 14,  ///< coordinator → server: send your state, as it is now
  state = 15,     ///< server → coordinator: the next bytes, kMaxBodyBytes at most, of the shard's
                  ///< and the optimizer's state, which has `count` in all. Bulk
  finish = 16,    ///< coordinator → everyone: the job is done
  leave = 17,     ///< worker → coordinator: it leaves in good order
  // With two copies of each shard:
  record = 18,     ///< coordinator → its stand-in: a step has ended. Body: StepRecord
  caught_up = 19,  ///< server → stand-in: all updates that you lacked have been sent
  forget = 20,     ///< new coordinator → server: no lease of term < `sequence` will be applied
  // Between a worker and a server of one host (shared_path.h):
  memory = 21,         ///< worker → server: where memory is that both could use
  memory_opened = 22,  ///< server → worker: whether it sees that memory: `count` 1 or 0
  taken = 23,  ///< either way: `sequence` bytes have been taken out of the sender's ring so far
  // Before the job begins (questions.h):
  rate = 24,  ///< either way: bytes that say nothing; the answer is to have `count` of them. Bulk
  // To and from the one that sends its data set (data/transfer/data_link.h):
  ask_data = 25,       ///< client → server, first: the asking process, and the reason. Body:
                       ///< train::Copy
  checking_data = 26,  ///< server → client: it has read `sequence` of `count` bytes of its copy
  offer_data = 27,     ///< server → client: its copy. Body: train::Copy
  order_data = 28,  ///< client → server: `count` bytes of file `part`, from byte `sequence` on,
                    ///< where the last order for that file ended
  data = 29,        ///< server → client: these bytes. Bulk
  // Instead of joining (questions.h):
  ask_leader = 30,  ///< anyone → server
  leader = 31,      ///< server → who has asked: server `count` leads the job, as far as it knows
  said = 32,        ///< worker, server → coordinator: what its log has new. Body: Said
};

/// Whether messages of this kind carry tensors or the like; all others are control messages.
constexpr bool is_bulk(MessageKind kind) noexcept {
  return kind == MessageKind::piece || kind == MessageKind::push || kind == MessageKind::state ||
         kind == MessageKind::rate || kind == MessageKind::data;
}

/// Whether they are sealed however long they are (net/frame.h). A state is a file's worth of names,
/// types and lengths; content that is sent is compared with its digest; the rest are tensors.
constexpr bool is_sealed(MessageKind kind) noexcept {
  return !is_bulk(kind) || kind == MessageKind::state;
}

/// A control message's body is no longer than that.
inline constexpr std::size_t kMaxBodyBytes = std::size_t{1} << 20;

using Body = std::vector<std::byte>;

/// A reader fetches parameters as a worker does, and gets no leases.
enum class Role : std::uint8_t { worker = 1, server = 2, reader = 3 };
std::string_view to_string(Role role) noexcept;

struct Join {
  Role role = Role::worker;
  std::int32_t number = -1;  ///< a server's; a worker's wish, −1 for any
  std::string host;
  std::string device;
  std::string release;             ///< of its Bimetal
  double samples_per_s = 0;        ///< measured by the worker itself; 0: unknown
  double step_seconds = 0;         ///< of a step beside that, however few its samples
  std::vector<std::string> facts;  ///< "train.seed = 1", "fc1.weight [128, 3136] float32", …
};
Body encode(const Join& join);
Join decode_join(std::span<const std::byte> body);

struct Welcome {
  std::int32_t number = 0;  ///< the worker's
  std::uint64_t version = 0;
};
Body encode(const Welcome& welcome);
Welcome decode_welcome(std::span<const std::byte> body);

/// An Error, as the other side is to throw it.
Body encode(const Error& error);
Error decode_refused(std::span<const std::byte> body);

enum class Work : std::uint8_t {
  train = 1,     ///< samples `offset` … of epoch `epoch`'s order
  evaluate = 2,  ///< test chunks `offset` …
};

struct Lease {
  std::uint64_t id = 0;
  Work work = Work::train;
  std::int64_t epoch = 0;
  std::int64_t offset = 0;
  std::int64_t count = 0;
  std::int64_t denominator = 1;  ///< divides the sum of the samples' losses
  std::uint64_t version = 0;     ///< the parameters must be at least that new
  double steps_ahead = 0;        ///< how many newer they are expected to be in the end
};
Body encode(const Lease& lease);
Lease decode_lease(std::span<const std::byte> body);

struct Done {
  std::uint64_t version = 0;         ///< of the oldest parameters that it was computed with
  double loss_sum = 0;               ///< over the lease's samples
  std::vector<double> metrics = {};  ///< evaluate: the sums of the task's metrics
  std::int64_t weight = 0;           ///< evaluate: of those chunks' samples
  double compute_seconds = 0;
  double communicate_seconds = 0;
  double wait_seconds = 0;       ///< for parameters and for this lease
  std::uint64_t bytes_sent = 0;  ///< by this worker since it joined
};
Body encode(const Done& done);
Done decode_done(std::span<const std::byte> body);

struct Apply {
  double learning_rate_scale = 1;     ///< of a step's
  double part = 1;                    ///< of a step: the share of its samples, above 0
  std::vector<std::uint64_t> leases;  ///< to be summed in this order; none: the version alone grows
  Position after;
};
Body encode(const Apply& apply);
Apply decode_apply(std::span<const std::byte> body);

/// Lines of all workers and servers, for those that watch the job.
struct Said {
  std::vector<progress::RankLine> lines;
};
Body encode(const Said& said);
Said decode_said(std::span<const std::byte> body);

}  // namespace bimetal::parallel::server
