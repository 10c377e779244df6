#pragma once
// Times one operation at one size, on all ranks together.
//
// The measurements of one run of the fabric's benchmark, and its command line.
//
// One operation at one size on one rank: its buffers, the call, and the result that must come out.

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstddef>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "bimetal/base/deadline.h"
#include "bimetal/comm/compress/compression.h"
#include "bimetal/comm/dtype.h"
#include "bimetal/comm/group.h"

namespace bimetal::fabric_bench {

struct BenchOptions {
  comm::Operation operation = comm::Operation::all_reduce;
  std::size_t min_bytes = 256;
  std::size_t max_bytes = std::size_t{256} << 20;
  double factor = 4;  ///< from one size to the next
  comm::DType dtype = comm::DType::float32;
  int ranks = 2;       ///< processes to start here; ignored under a launcher
  int iterations = 0;  ///< timed runs of each size; 0: as many as fit seconds_per_size
  double seconds_per_size = 1;
  double timeout_s = 60;  ///< deadline of one operation
  std::string transport = "auto";
  std::string algorithm = "auto";
  comm::Compression compression = {};  ///< of allreduce, with error feedback
  /// For allgather and reducescatter: the proportions of the ranks' parts. Empty: equal parts.
  std::vector<double> shards = {};
  bool verify = true;
  bool json = false;
};

/// Adds the operation and the options to a command; parsing fills `options`, which must outlive the
/// application.
void add_options(CLI::App& command, BenchOptions& options);

/// The same options as words of a command line.
std::vector<std::string> to_arguments(const BenchOptions& options);

/// From min_bytes to max_bytes by factor. Error(InvalidArgument) where they name no size.
std::vector<std::size_t> sizes(const BenchOptions& options);

// Data whose sums are known without computing them as the fabric does: a short pattern of small
// whole numbers, over and over, different on each rank.

/// One value for each of kPeriod consecutive elements.
using Pattern = std::vector<double>;
inline constexpr std::size_t kPeriod = 61;  ///< a prime: pieces of a buffer begin anywhere in it

/// The contribution of `rank`. Sums over up to 40 ranks are exact in every type.
Pattern pattern_of(int rank);

/// The sum over `size` ranks.
Pattern sum_of_patterns(int size);

/// Fills `memory` with the pattern, from its element `first` on.
void fill(std::span<std::byte> memory, comm::DType dtype, const Pattern& pattern,
          std::size_t first = 0);

/// Empty if `memory` holds the pattern from its element `first` on, otherwise the difference.
std::string difference(std::span<const std::byte> memory, comm::DType dtype, const Pattern& pattern,
                       std::size_t first = 0);

/// ‖memory − factor × pattern‖ / ‖factor × pattern‖, 0 for no elements.
double relative_error(std::span<const std::byte> memory, comm::DType dtype, const Pattern& pattern,
                      double factor);

/// Seconds are of the rank on which a run took longest; the same on every rank.
struct Measurement {
  std::size_t bytes = 0;
  int iterations = 0;
  double mean_s = 0;  ///< of runs one after the other, as a program makes them
  double least_s = 0;
  double median_s = 0;
  double p99_s = 0;
  double bus_factor = 1;  ///< see Exercise
  double cpu_s = 0;       ///< processor time of one run, user and system, over all ranks

  double algorithm_bytes_per_s() const { return static_cast<double>(bytes) / mean_s; }
  double bus_bytes_per_s() const { return algorithm_bytes_per_s() * bus_factor; }
};

/// Verifies, warms up, and measures. Collective. Error(CorruptData) for a wrong result.
Measurement measure(comm::Group group, const BenchOptions& options, std::size_t bytes);

/// Not thread-safe. All ranks make the same ones and call the same functions in the same order.
class Exercise {
 public:
  /// `bytes` is rounded to whole elements for each rank. As nccl-tests counts them: the buffer of
  /// all_reduce, broadcast, reduce and send_recv; the larger of the two buffers of the others.
  /// `compression` is all_reduce's, which then computes the average: runs on their own results must
  /// not grow without bounds. `shards`: for all_gather and reduce_scatter, the proportions of the
  /// ranks' parts; none: equal parts. Error(InvalidArgument) unless they are one for each rank.
  Exercise(comm::Group group, comm::Operation operation, comm::DType dtype, std::size_t bytes,
           comm::Compression compression = {}, std::span<const double> shards = {});

  std::size_t bytes() const noexcept { return large_.size(); }

  /// Bus bandwidth ÷ algorithm bandwidth: the bytes that a link carries for each byte of bytes(),
  /// at best (nccl-tests, PERFORMANCE.md). With unequal parts: the bytes that the rank with the
  /// smallest part gets.
  double bus_factor() const;

  /// Sets the inputs of a run, and other values where the results are to be.
  void fill();

  /// The operation, once, to its end.
  void run(Deadline deadline);

  /// Empty if a run after fill() has the right result, otherwise its fault. Collective if something
  /// is compressed.
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
