#pragma once
// One operation at one size on one rank: its buffers, the call, and what must come out of it.

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "bimetal/base/deadline.h"
#include "bimetal/comm/group.h"

namespace bimetal::fabric_bench {

/// Not thread-safe. All ranks make the same ones and call the same functions in the same order.
class Exercise {
 public:
  /// `bytes` is rounded to whole elements for each rank. As nccl-tests counts them: the buffer of
  /// all_reduce, broadcast, reduce and send_recv; the larger of the two buffers of the others.
  /// `compression` is all_reduce's, which then computes the average: runs on their own results must
  /// not grow without bounds. `shards`: of all_gather and reduce_scatter, what each rank's part is
  /// in proportion to; none: equal parts. Error(InvalidArgument) unless they are one for each rank.
  Exercise(comm::Group group, comm::Operation operation, comm::DType dtype, std::size_t bytes,
           comm::Compression compression = {}, std::span<const double> shards = {});

  std::size_t bytes() const noexcept { return large_.size(); }

  /// Bus bandwidth ÷ algorithm bandwidth: what a link carries of each byte of bytes(), at best
  /// (nccl-tests, PERFORMANCE.md). Of unequal parts: what the rank with the smallest one gets.
  double bus_factor() const;

  /// Sets the inputs of a run, and other values where the results are to be.
  void fill();

  /// The operation, once, to its end.
  void run(Deadline deadline);

  /// Empty if a run after fill() has left what it should, else what is wrong. Collective where
  /// something is compressed.
  std::string fault() const;

 private:
  comm::Buffer large();
  comm::Buffer small();
  std::span<const std::byte> piece(int rank) const;
  std::size_t first_of(int rank) const;  ///< element of the large buffer that its part begins at
  bool compressed() const noexcept { return compression_.scheme != comm::Scheme::none; }
  void run_compressed(Deadline deadline);
  std::string compressed_fault() const;
  bool same_everywhere() const;
  std::size_t piece_elements() const { return small_.size() / comm::size_of(dtype_); }

  comm::Group group_;
  comm::Operation operation_;
  comm::DType dtype_;
  comm::Compression compression_;
  std::vector<std::size_t> counts_;  ///< elements of each rank's piece, where these are unequal
  std::vector<std::byte> large_;     ///< all ranks' pieces, or the only buffer
  std::vector<std::byte> small_;     ///< one rank's piece, where the operation has such
  std::vector<std::byte> received_;  ///< second buffer of all_to_all and send_recv
};

}  // namespace bimetal::fabric_bench
