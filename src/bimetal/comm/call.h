#pragma once
// One rank's call, in a form that other ranks can compare with their own.
//
// A number by which to notice that bytes differ (FNV-1a, 64 bits): it guards against mistakes, not
// against forgery.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "bimetal/comm/algorithm.h"
#include "bimetal/comm/compress/compression.h"
#include "bimetal/comm/dtype.h"
#include "bimetal/comm/failure.h"
#include "bimetal/net/frame.h"

namespace bimetal::comm {

/// No payload of a Data frame is longer: a receiver never needs more memory than this for bytes
/// that it cannot place, and reduction of one part overlaps the transfer of the next.
inline constexpr std::size_t kMaxPartBytes = std::size_t{1} << 20;

/// Numbers of frames without payload that only carry a call's fingerprint (see GroupCore).
inline constexpr std::uint32_t kProbePart = 0xffffffffu;   ///< "I am waiting in this call"
inline constexpr std::uint32_t kAnswerPart = 0xfffffffeu;  ///< "I am through with it"

/// Numbers of send_recv's frames that belong to no message but are about memory through which long
/// ones go (shm/segment.h), and what is added to those of parts that lie there.
inline constexpr std::uint32_t kOfferPart = 0xfffffffdu;    ///< "here it is"; payload: its address
inline constexpr std::uint32_t kOpenedPart = 0xfffffffcu;   ///< "I see it"
inline constexpr std::uint32_t kRefusedPart = 0xfffffffbu;  ///< "I do not, or not any more"
inline constexpr std::uint32_t kFreedPart = 0xfffffffau;    ///< "I have read the oldest part there"
inline constexpr std::uint32_t kPlacedPart = 0x80000000u;

/// A collective call, or one side of a point-to-point message.
struct Call {
  Operation operation = Operation::barrier;
  DType dtype = DType::uint8;
  std::optional<ReduceOp> reduce_op = {};
  std::uint64_t count = 0;     ///< elements, as docs/protocol.md defines them for each operation
  int root = -1;               ///< rank within the group
  std::uint64_t sequence = 0;  ///< number of the collective within its group, or the message's tag
  std::uint32_t epoch = 0;     ///< membership epoch of the group

  CompressionTag compression = {};
  Algorithm algorithm = Algorithm::automatic;  ///< as asked for: all_reduce alone

  /// all_gather and reduce_scatter with a part of its own for each rank; `count` is then their sum.
  std::vector<std::size_t> part_counts = {};

  /// all_to_all alone has a count of its own for each pair of ranks.
  std::vector<std::size_t> send_counts = {};
  std::vector<std::size_t> recv_counts = {};

  bool point_to_point() const noexcept { return operation == Operation::send_recv; }

  /// Header of a frame of this call to rank `to`, and the one expected from rank `from` (ranks
  /// within the group). part and payload_bytes are left 0. Bytes and integers are sealed
  /// (net/frame.h): they may be texts, names, lengths or Python's pickles, where floating-point
  /// numbers are numbers whatever happens to them.
  net::FrameHeader header_to(std::uint32_t group, int to) const;
  net::FrameHeader header_from(std::uint32_t group, int from) const;
};

/// Whether two frames belong to the same call: everything but part and payload is equal.
bool same_call(const net::FrameHeader& a, const net::FrameHeader& b) noexcept;

/// "all_reduce(sum) of 10 float32", "all_reduce(sum, int8) of 10 float32",
/// "broadcast of 10 float32 from root 1", "barrier".
std::string describe(const net::FrameHeader& header);

/// The same with its number: "barrier as call 7", "send_recv of 10 float32 with tag 3".
std::string describe_numbered(const net::FrameHeader& header);

/// CallMismatch that names both ranks and both calls. `sent` came from world rank `sender`,
/// `expected` is the need of the call on world rank `receiver`. The text is the same on either
/// side.
Failure mismatch(int sender, const net::FrameHeader& sent, int receiver,
                 const net::FrameHeader& expected);

/// A checksum of values that travel between ranks: its results must never change.
class Checksum {
 public:
  void take(std::uint64_t word) noexcept { value_ = (value_ ^ word) * 0x100000001b3u; }
  void take(std::span<const std::byte> bytes) noexcept {
    for (const std::byte byte : bytes) take(std::to_integer<std::uint64_t>(byte));
  }
  std::uint64_t value() const noexcept { return value_; }

 private:
  std::uint64_t value_ = 0xcbf29ce484222325u;
};

inline std::uint64_t checksum_of(std::span<const std::byte> bytes) noexcept {
  Checksum sum;
  sum.take(bytes);
  return sum.value();
}

}  // namespace bimetal::comm
