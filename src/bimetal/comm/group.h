#pragma once
// A group of ranks and its collectives: the fabric's public interface.
//
// Memory that collectives of a group can work on without copies.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "bimetal/base/deadline.h"
#include "bimetal/comm/algorithm.h"
#include "bimetal/comm/compress/compression.h"
#include "bimetal/comm/dtype.h"
#include "bimetal/comm/work.h"

namespace bimetal::net {
class Mesh;
}

namespace bimetal::comm {

/// A shared handle; the memory lives as long as any handle to it, the group's end included. It
/// begins at a page. Not thread-safe itself, as no vector is.
class GroupMemory {
 public:
  GroupMemory() = default;
  /// `shared`: whether the other ranks of the machine see it.
  GroupMemory(std::shared_ptr<const void> owner, std::span<std::byte> bytes, bool shared)
      : owner_(std::move(owner)), bytes_(bytes), shared_(shared) {}

  std::span<std::byte> bytes() const noexcept { return bytes_; }  ///< all of it

  /// Whether the group's other ranks can reach it. If not it is memory like any other.
  bool shared() const noexcept { return shared_; }

 private:
  std::shared_ptr<const void> owner_;
  std::span<std::byte> bytes_;
  bool shared_ = false;
};

/// How a group is made.
struct GroupOptions {
  /// The carrier of the collectives. All ranks of the world must ask for the same.
  Transport transport = Transport::automatic;
  /// Ranks of one host share memory only if they name the same island (or none): for machines whose
  /// parts are better kept apart, and to have several hosts on one machine. BIMETAL_ISLAND says it
  /// where this is empty.
  std::string island;
  /// The algorithm of all-reduces. All ranks must ask for the same. Where this leaves it open,
  /// BIMETAL_ALGORITHM decides.
  Algorithm algorithm = Algorithm::automatic;
  /// Deadline of an operation that names none of its own.
  std::chrono::milliseconds timeout{std::chrono::minutes(5)};

  /// Membership epoch: part of every call's fingerprint, by which a rank of an earlier life of the
  /// job is found out. Subgroups inherit it.
  std::uint32_t epoch = 0;

  /// Where the flight recorder is written when a call fails: a folder or a file (see
  /// FlightRecorder::file_for). Empty: what BIMETAL_FLIGHT_RECORDER says, else nowhere.
  std::string flight_recorder = {};
};

/// A value handle over a private implementation; copies are the same group. Thread-safe.
///
/// Order: every rank of a group must issue the same collectives in the same order (from one thread,
/// or otherwise ordered). They run in that order; several may be in flight. send/recv are matched
/// by (peer, tag) and are independent of the collectives' order. Data that a rank sends ahead of
/// its receiver is kept there, up to 256 MiB per pair of ranks. Beyond that the path between the
/// two waits, collectives included, until the receiver takes some of it.
///
/// Buffers belong to the operation from the call until its Work is done.
///
/// Reductions give every rank the same bits. (Between processors of different kinds the bits of a
/// NaN may differ.)
///
/// Errors arrive through Work::wait(): CallMismatch (ranks disagree about the call; names both
/// ranks and both calls), PeerLost(rank), Timeout (names the ranks waited for), Aborted. Any of
/// them ends the group on all its ranks: later calls fail with the same cause. A rank that has only
/// something to send may be through with a call before another finds it wrong; it learns of that
/// in its next one. Ranks in errors are those of the world group, which stand for processes.
/// InvalidArgument is thrown at once by the call itself and leaves the group usable.
class Group {
 public:
  Group() = default;

  int rank() const;  ///< of this process in the group, from 0
  int size() const;  ///< ranks
  /// Whether it is a group at all.
  explicit operator bool() const noexcept { return impl_ != nullptr; }

  /// `data` becomes the sum (or what `op` is) of all ranks' data, bit for bit the same on all.
  Work all_reduce(Buffer data, ReduceOp op = ReduceOp::sum, std::optional<Deadline> deadline = {});
  /// The same with shorter messages, at the price of exactness: docs/compression.md. Every rank
  /// gets the same bits here, too. Error(InvalidArgument) for integers and for anything but sums
  /// and averages.
  Work all_reduce(Buffer data, ReduceOp op, const Compression& compression,
                  std::optional<Deadline> deadline = {});
  /// `data` becomes that of rank `root`.
  Work broadcast(Buffer data, int root, std::optional<Deadline> deadline = {});
  /// The result is defined on `root` alone; elsewhere `data` is scratch afterwards.
  Work reduce(Buffer data, int root, ReduceOp op = ReduceOp::sum,
              std::optional<Deadline> deadline = {});
  /// output.count == input.count × size(); rank r's input lands at r × input.count.
  Work all_gather(ConstBuffer input, Buffer output, std::optional<Deadline> deadline = {});
  /// The same for bytes where ranks do not know how many the others have. By messages, also where
  /// ranks share memory.
  Work all_gather_bytes(std::span<const std::byte> input, std::shared_ptr<Gathered> output,
                        std::optional<Deadline> deadline = {});
  /// input.count == output.count × size(); `input` is scratch afterwards.
  Work reduce_scatter(Buffer input, Buffer output, ReduceOp op = ReduceOp::sum,
                      std::optional<Deadline> deadline = {});
  /// The same for inputs of unequal length: counts[r] is rank r's, any of them may be 0, and its
  /// part begins where those before it end. `input` may be its own place in `output`. Every rank
  /// gives the same counts: ranks that do not get CallMismatch.
  Work all_gather(ConstBuffer input, Buffer output, std::span<const std::size_t> counts,
                  std::optional<Deadline> deadline = {});
  /// The same for outputs of unequal length, as all_gather has them. `output` may be its own place
  /// in `input`.
  Work reduce_scatter(Buffer input, Buffer output, std::span<const std::size_t> counts,
                      ReduceOp op = ReduceOp::sum, std::optional<Deadline> deadline = {});
  /// input.count == output.count × size() on `root`, ignored elsewhere.
  Work scatter(ConstBuffer input, Buffer output, int root, std::optional<Deadline> deadline = {});
  /// output.count == input.count × size() on `root`, ignored elsewhere.
  Work gather(ConstBuffer input, Buffer output, int root, std::optional<Deadline> deadline = {});
  /// Element counts to and from each rank; what rank i sends to j must equal what j expects of i.
  Work all_to_all(ConstBuffer input, std::span<const std::size_t> send_counts, Buffer output,
                  std::span<const std::size_t> recv_counts, std::optional<Deadline> deadline = {});
  /// To one rank, which receives it with the same tag. `data` must stay until the end.
  Work send(ConstBuffer data, int peer, std::uint64_t tag = 0,
            std::optional<Deadline> deadline = {});
  /// From one rank, of exactly so many bytes.
  Work recv(Buffer data, int peer, std::uint64_t tag = 0, std::optional<Deadline> deadline = {});
  /// Receives the first message of the tag to arrive, from any rank (Work::sender). If several
  /// receives suit a message, with a peer or without, the one called first gets it.
  Work recv_from_anybody(Buffer data, std::uint64_t tag = 0, std::optional<Deadline> deadline = {});
  /// Ends when all ranks have called it.
  Work barrier(std::optional<Deadline> deadline = {});

  /// Which ranks have memory in common. The same on all ranks.
  const Topology& topology() const;

  /// The carrier of this group's messages: shm where all ranks share memory, else tcp or mpi. In a
  /// group of several islands (topology()) that is the carrier between islands; all-reduces of more
  /// than 32 KiB go through memory inside each.
  Transport transport() const;

  /// A group of some of this group's ranks, in the given order. Collective: every member of this
  /// group calls it with the same list; those outside it get an empty handle. Blocks, and throws
  /// what Work::wait() would.
  Group subgroup(const std::vector<int>& ranks);

  /// The same for the members alone: only they call it, all with the same list and the same `id`.
  /// One of them took it from new_subgroup_id() and gave it to the others by some other way. For
  /// callers such as torch, which asks none but the members. Lists that differ are not found out.
  /// `timeout`: that of the new group, as in GroupOptions, and the time for its members to come. By
  /// default it is this group's. Error(InvalidArgument) on a rank that is not in the list.
  Group subgroup(const std::vector<int>& ranks, std::uint32_t id,
                 std::optional<std::chrono::milliseconds> timeout = {});

  /// A number that this function gives on no other rank and in no other call of the job.
  std::uint32_t new_subgroup_id();

  /// Memory that the ranks can reduce where it is, without copying it first: for buffers that are
  /// reduced again and again. All-reduces of long buffers gain by it, if the buffers of all ranks
  /// lie in memory of the same call to allocate(). Where the ranks share no memory it is memory
  /// like any other. Zeroed. Collective, with the same number of bytes on all ranks, in order with
  /// the other collectives; blocks until the deadline of options.timeout. Errors: InvalidArgument,
  /// on every rank, if they share memory and the numbers differ; OutOfMemory; else what
  /// Work::wait() would throw.
  GroupMemory allocate(std::size_t bytes);

  /// Ends everything in flight, here and on every other rank, with Error(Aborted, reason).
  void abort(const std::string& reason);

  /// Why the group has ended, if it has failed: what later calls fail with. Does not block.
  std::exception_ptr error() const;

  /// Where the group has failed: until the words on that have left this process for the others, or
  /// until `deadline`. For a process that may end without close(): they would find it gone, and
  /// not hear why. Not from a thread of the group's own.
  void wait_told(Deadline deadline);

  /// Orderly end: waits for calls in flight (those not done by `deadline` end in Aborted, here and
  /// elsewhere) and says goodbye. Ranks that still wait for this one get PeerLost. A group that has
  /// failed does not wait. The last group of a job to close ends its connections. The destructor of
  /// the last handle does all this with a deadline of 2 s.
  void close(Deadline deadline);

  /// Bytes this process has put on the wire for the job so far. Shared memory does not count.
  std::uint64_t bytes_sent() const;

  /// The last 1000 calls of this process in all groups of the job, as JSON: see
  /// comm/group/flight_recorder.h. Also after a failure or close().
  std::string flight_recorder() const;

 private:
  struct Impl;
  explicit Group(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}
  friend Group make_group(std::unique_ptr<net::Mesh> mesh, GroupOptions options);
  Impl& impl() const;
  std::shared_ptr<Impl> impl_;
};

/// The world group over a mesh. A mesh of size 1 gives a real group whose operations end at once.
/// Collective: the ranks find out first who shares memory with whom, by options.timeout. Errors:
/// InvalidArgument if they ask for different transports or for another than the mesh's, Unsupported
/// if for shared memory that they do not have; else what Work::wait() would throw.
Group make_group(std::unique_ptr<net::Mesh> mesh, GroupOptions options = {});

}  // namespace bimetal::comm
