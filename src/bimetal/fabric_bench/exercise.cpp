#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "bimetal/balance/shares.h"
#include "bimetal/base/error.h"
#include "bimetal/comm/call.h"
#include "bimetal/fabric_bench/measure.h"

namespace bimetal::fabric_bench {
namespace {

using comm::Operation;

constexpr int kRoot = 0;

bool has_pieces(Operation operation) {
  return operation == Operation::all_gather || operation == Operation::reduce_scatter ||
         operation == Operation::all_to_all;
}

bool has_second_buffer(Operation operation) {
  return operation == Operation::all_to_all || operation == Operation::send_recv;
}

// The most that a value may lose, relative to the size of the true average in this benchmark's
// data: docs/compression.md bounds the loss by each rank's encoding and that of the sum.
double most_lost(comm::Scheme scheme) {
  switch (scheme) {
    case comm::Scheme::float16:
    case comm::Scheme::bfloat16: return 0.01;
    case comm::Scheme::int8: return 0.02;
    case comm::Scheme::int4: return 0.3;
    default: return 1.5;
  }
}

}  // namespace

Exercise::Exercise(comm::Group group, Operation operation, comm::DType dtype, std::size_t bytes,
                   comm::Compression compression, std::span<const double> shards)
    : group_(std::move(group)),
      operation_(operation),
      dtype_(dtype),
      compression_(std::move(compression)) {
  compression_.memory = std::make_shared<comm::BucketMemory>();
  if (operation == Operation::barrier) return;
  const auto ranks = static_cast<std::size_t>(group_.size());
  const std::size_t pieces = has_pieces(operation) ? ranks : 1;
  const std::size_t elements = std::max<std::size_t>(bytes / size_of(dtype) / pieces, 1);
  if (pieces > 1 || has_pieces(operation)) small_.resize(elements * size_of(dtype));
  large_.resize(elements * pieces * size_of(dtype));
  if (has_second_buffer(operation)) received_.resize(large_.size());
  if (shards.empty()) return;
  if (shards.size() != ranks) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("{} weights for the parts of {} ranks", shards.size(), ranks));
  }
  const auto parts = balance::weighted_shares(shards, static_cast<std::int64_t>(elements * pieces));
  counts_.assign(parts.begin(), parts.end());
  small_.resize(counts_[static_cast<std::size_t>(group_.rank())] * size_of(dtype));
}

comm::Buffer Exercise::large() {
  return {large_.data(), large_.size() / size_of(dtype_), dtype_};
}

comm::Buffer Exercise::small() {
  return {small_.data(), piece_elements(), dtype_};
}

double Exercise::bus_factor() const {
  const double n = group_.size();
  if (!counts_.empty()) {
    return 1 - static_cast<double>(std::ranges::min(counts_) * size_of(dtype_)) /
                   static_cast<double>(large_.size());
  }
  switch (operation_) {
    case Operation::all_reduce: return 2 * (n - 1) / n;
    case Operation::all_gather:
    case Operation::reduce_scatter:
    case Operation::all_to_all: return (n - 1) / n;
    default: return 1;
  }
}

void Exercise::fill() {
  const Pattern own = pattern_of(group_.rank());
  fabric_bench::fill(large_, dtype_, own);
  if (operation_ == Operation::all_gather) {
    fabric_bench::fill(small_, dtype_, own);
    std::ranges::fill(large_, std::byte{});
  }
  if (operation_ == Operation::broadcast && group_.rank() != kRoot) {
    std::ranges::fill(large_, std::byte{});
  }
  if (operation_ == Operation::reduce_scatter) std::ranges::fill(small_, std::byte{});
  std::ranges::fill(received_, std::byte{});
}

void Exercise::run(Deadline deadline) {
  using comm::ReduceOp;
  if (compressed()) return run_compressed(deadline);
  switch (operation_) {
    case Operation::all_reduce: return group_.all_reduce(large(), ReduceOp::sum, deadline).wait();
    case Operation::broadcast: return group_.broadcast(large(), kRoot, deadline).wait();
    case Operation::reduce: return group_.reduce(large(), kRoot, ReduceOp::sum, deadline).wait();
    case Operation::all_gather:
      if (!counts_.empty()) return group_.all_gather(small(), large(), counts_, deadline).wait();
      return group_.all_gather(small(), large(), deadline).wait();
    case Operation::reduce_scatter:
      if (!counts_.empty()) {
        return group_.reduce_scatter(large(), small(), counts_, ReduceOp::sum, deadline).wait();
      }
      return group_.reduce_scatter(large(), small(), ReduceOp::sum, deadline).wait();
    case Operation::barrier: return group_.barrier(deadline).wait();
    case Operation::all_to_all: {
      const std::vector<std::size_t> counts(static_cast<std::size_t>(group_.size()),
                                            piece_elements());
      const comm::Buffer into{received_.data(), large().count, dtype_};
      return group_.all_to_all(large(), counts, into, counts, deadline).wait();
    }
    case Operation::send_recv: {
      if (group_.size() == 1) return;
      const int n = group_.size();
      const comm::Buffer into{received_.data(), large().count, dtype_};
      const auto sent = group_.send(large(), (group_.rank() + 1) % n, 0, deadline);
      group_.recv(into, (group_.rank() + n - 1) % n, 0, deadline).wait();
      return sent.wait();
    }
    default: break;
  }
  throw Error(ErrorCode::Unsupported,
              fmt::format("no benchmark of {}", comm::to_string(operation_)));
}

std::span<const std::byte> Exercise::piece(int rank) const {
  const auto& whole = operation_ == Operation::all_to_all ? received_ : large_;
  const auto begin = first_of(rank) * size_of(dtype_);
  return std::span(whole).subspan(begin, first_of(rank + 1) * size_of(dtype_) - begin);
}

std::size_t Exercise::first_of(int rank) const {
  const auto before = static_cast<std::size_t>(rank);
  if (counts_.empty()) return before * piece_elements();
  return std::accumulate(counts_.begin(), counts_.begin() + rank, std::size_t{0});
}

void Exercise::run_compressed(Deadline deadline) {
  group_.all_reduce(large(), comm::ReduceOp::avg, compression_, deadline).wait();
}

std::string Exercise::fault() const {
  if (compressed()) return compressed_fault();
  const int n = group_.size(), rank = group_.rank();
  const Pattern sum = sum_of_patterns(n);
  switch (operation_) {
    case Operation::all_reduce: return difference(large_, dtype_, sum);
    case Operation::broadcast: return difference(large_, dtype_, pattern_of(kRoot));
    case Operation::reduce: return rank == kRoot ? difference(large_, dtype_, sum) : "";
    case Operation::reduce_scatter: return difference(small_, dtype_, sum, first_of(rank));
    case Operation::send_recv:
      return n == 1 ? "" : difference(received_, dtype_, pattern_of((rank + n - 1) % n));
    case Operation::all_gather:
    case Operation::all_to_all:
      for (int from = 0; from < n; ++from) {
        const std::size_t first = operation_ == Operation::all_to_all
                                      ? static_cast<std::size_t>(rank) * piece_elements()
                                      : 0;
        auto wrong = difference(piece(from), dtype_, pattern_of(from), first);
        if (!wrong.empty()) return fmt::format("from rank {}: {}", from, wrong);
      }
      return {};
    default: return {};
  }
}

std::string Exercise::compressed_fault() const {
  const double lost = relative_error(large_, dtype_, sum_of_patterns(group_.size()),
                                     1.0 / static_cast<double>(group_.size()));
  if (!(lost <= most_lost(compression_.scheme))) {
    return fmt::format("{} has lost {:.3g} of what there was", to_string(compression_.scheme),
                       lost);
  }
  return same_everywhere() ? "" : "another rank has other bits";
}

bool Exercise::same_everywhere() const {
  const std::vector<std::int64_t> own = {static_cast<std::int64_t>(comm::checksum_of(large_))};
  std::vector<std::int64_t> all(static_cast<std::size_t>(group_.size()));
  comm::Group group = group_;
  group.all_gather(comm::buffer(own), comm::buffer(all)).wait();
  return std::ranges::count(all, own.front()) == group_.size();
}

}  // namespace bimetal::fabric_bench
