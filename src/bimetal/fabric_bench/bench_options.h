#pragma once
// What one run of the fabric's benchmark measures, and its command line.

#include <CLI/CLI.hpp>
#include <cstddef>
#include <string>
#include <vector>

#include "bimetal/comm/compress/compression.h"
#include "bimetal/comm/dtype.h"

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
  /// Of allgather and reducescatter: what each rank's part is in proportion to. None: equal parts.
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

}  // namespace bimetal::fabric_bench
