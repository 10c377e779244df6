#include "portability/fabric_checks.h"

#include <fmt/format.h>

#include <array>
#include <numeric>
#include <vector>

#include "bimetal/base/error.h"
#include "conformance/reference.h"

namespace bimetal::testing {
namespace {

using comm::DType;
using comm::ReduceOp;

constexpr std::array<std::size_t, 4> kCounts{0, 1, 7, 1000};
constexpr std::size_t kLarge = 300007;  // long enough for the ring and for several parts

class Checks {
 public:
  Checks(comm::Group group, const OnWrong& wrong)
      : group_(std::move(group)), size_(static_cast<std::size_t>(group_.size())), wrong_(wrong) {}

  int run() {
    reductions(kLarge, DType::float32, ReduceOp::sum);
    reductions(kLarge, DType::float16, ReduceOp::avg);
    reductions(kLarge, DType::int64, ReduceOp::max);
    for (const DType dtype : kAllTypes) {
      for (const std::size_t count : kCounts) {
        for (const ReduceOp op : kAllOps) reductions(count, dtype, op);
        movements(count, dtype);
      }
    }
    movements(kLarge, DType::float32);
    unequal_parts();
    all_to_all();
    messages();
    group_.barrier().wait();
    return calls_;
  }

 private:
  int next_root() { return ++calls_ % group_.size(); }

  void expect_none(const std::string& difference, std::string_view call) {
    if (difference.empty() || told_) return;
    told_ = true;  // one line says enough
    wrong_(fmt::format("{}: {}", call, difference));
  }

  Array own(std::size_t count, DType dtype, ReduceOp op) const {
    return contributions(group_.rank(), count, dtype, op);
  }

  Array given(int rank, std::size_t count, DType dtype) const {
    return payloads(rank, 0, count, dtype);
  }

  void expect_reduced(const Array& data, std::size_t first, ReduceOp op, std::string_view name) {
    expect_none(wrong_in_reduced(data, first, group_.size(), op),
                fmt::format("{} ({} of {})", name, to_string(op), to_string(data.dtype())));
  }

  void expect_given(const Array& data, std::size_t offset, int from, std::size_t first,
                    std::size_t count, std::string_view name) {
    expect_none(wrong_in_given(data, offset, from, first, count), name);
  }

  void reductions(std::size_t count, DType dtype, ReduceOp op) {
    Array all = own(count, dtype, op);
    group_.all_reduce(all.buffer(), op).wait();
    expect_reduced(all, 0, op, "all_reduce");

    const int root = next_root();
    Array one = own(count, dtype, op);
    group_.reduce(one.buffer(), root, op).wait();
    if (group_.rank() == root) expect_reduced(one, 0, op, "reduce");

    const std::size_t piece = count / size_;
    Array input = own(piece * size_, dtype, op);
    Array output(piece, dtype);
    group_.reduce_scatter(input.buffer(), output.buffer(), op).wait();
    expect_reduced(output, piece * static_cast<std::size_t>(group_.rank()), op, "reduce_scatter");
    calls_ += 2;
  }

  void movements(std::size_t count, DType dtype) {
    const int root = next_root();
    Array data = group_.rank() == root ? given(root, count, dtype) : Array(count, dtype);
    group_.broadcast(data.buffer(), root).wait();
    expect_given(data, 0, root, 0, count, "broadcast");

    const Array mine = given(group_.rank(), count, dtype);
    Array gathered(count * size_, dtype);
    group_.all_gather(mine.view(), gathered.buffer()).wait();
    expect_from_all(gathered, count, "all_gather");

    const bool is_root = group_.rank() == root;
    Array at_root(is_root ? count * size_ : 0, dtype);
    group_.gather(mine.view(), at_root.buffer(), root).wait();
    if (is_root) expect_from_all(at_root, count, "gather");

    const Array whole = is_root ? given(root, count * size_, dtype) : Array(0, dtype);
    Array piece(count, dtype);
    group_.scatter(whole.view(), piece.buffer(), root).wait();
    expect_given(piece, 0, root, count * static_cast<std::size_t>(group_.rank()), count, "scatter");
    calls_ += 3;
  }

  void expect_from_all(const Array& data, std::size_t count, std::string_view name) {
    for (int from = 0; from < group_.size(); ++from) {
      expect_given(data, count * static_cast<std::size_t>(from), from, 0, count, name);
    }
  }

  /// Rank r's part has r % 3 × 50021 elements: nothing for some.
  void unequal_parts() {
    std::vector<std::size_t> counts;
    for (std::size_t r = 0; r < size_; ++r) counts.push_back(r % 3 * 50021);
    const auto total = std::accumulate(counts.begin(), counts.end(), std::size_t{0});
    const auto rank = static_cast<std::size_t>(group_.rank());

    const Array mine = given(group_.rank(), counts[rank], DType::int16);
    Array gathered(total, DType::int16);
    group_.all_gather(mine.view(), gathered.buffer(), counts).wait();
    std::size_t begin = 0;
    for (std::size_t from = 0; from < size_; begin += counts[from++]) {
      expect_given(gathered, begin, static_cast<int>(from), 0, counts[from],
                   "all_gather of unequal parts");
    }

    Array input = own(total, DType::float32, ReduceOp::sum);
    Array output(counts[rank], DType::float32);
    group_.reduce_scatter(input.buffer(), output.buffer(), counts, ReduceOp::sum).wait();
    const auto first =
        std::accumulate(counts.begin(), counts.begin() + group_.rank(), std::size_t{0});
    expect_reduced(output, first, ReduceOp::sum, "reduce_scatter of unequal parts");
    calls_ += 2;
  }

  /// Rank i sends (i + 2j) % 5 × 40001 elements to rank j: uneven, and nothing to some.
  void all_to_all() {
    const auto count = [](std::size_t from, std::size_t to) { return (from + 2 * to) % 5 * 40001; };
    const auto rank = static_cast<std::size_t>(group_.rank());
    std::vector<std::size_t> to_each(size_), from_each(size_);
    std::size_t sent = 0, received = 0;
    for (std::size_t peer = 0; peer < size_; ++peer) {
      sent += to_each[peer] = count(rank, peer);
      received += from_each[peer] = count(peer, rank);
    }
    const Array input = given(group_.rank(), sent, DType::float32);
    Array output(received, DType::float32);
    group_.all_to_all(input.view(), to_each, output.buffer(), from_each).wait();
    std::size_t offset = 0;
    for (std::size_t from = 0; from < size_; ++from) {
      std::size_t first = 0;  // where in the sender's input this rank's piece begins
      for (std::size_t to = 0; to < rank; ++to) first += count(from, to);
      expect_given(output, offset, static_cast<int>(from), first, from_each[from], "all_to_all");
      offset += from_each[from];
    }
    ++calls_;
  }

  /// Once round the ring, each rank sending before it receives.
  void messages() {
    const int next = (group_.rank() + 1) % group_.size();
    const int before = (group_.rank() + group_.size() - 1) % group_.size();
    if (next == group_.rank()) return;
    const Array out = given(group_.rank(), kLarge, DType::int16);
    Array in(kLarge, DType::int16);
    const auto sent = group_.send(out.view(), next, 7);
    group_.recv(in.buffer(), before, 7).wait();
    sent.wait();
    expect_given(in, 0, before, 0, kLarge, "send and recv");
    ++calls_;
  }

  comm::Group group_;
  const std::size_t size_;
  const OnWrong& wrong_;
  int calls_ = 0;
  bool told_ = false;
};

}  // namespace

int check_collectives(comm::Group group, const OnWrong& wrong) {
  return Checks(std::move(group), wrong).run();
}

int check_mismatch(comm::Group group, const OnWrong& wrong) {
  if (group.size() == 1) return 0;
  const int odd_one = group.size() - 1;
  std::vector<float> data(group.rank() == odd_one ? 11 : 10);
  try {
    // It waits until the others are through with all calls before: the failure would end these,
    // too.
    constexpr std::uint64_t kThrough = 2;
    if (group.rank() != odd_one) group.send({}, odd_one, kThrough).wait();
    for (int rank = 0; group.rank() == odd_one && rank < odd_one; ++rank) {
      group.recv({}, rank, kThrough).wait();
    }
    group.all_reduce(comm::buffer(data)).wait();
    group.barrier().wait();  // a rank that had only to send learns of it in its next call
    wrong("ranks reduced unequal counts and were not told");
  } catch (const Error& error) {
    if (error.code() != ErrorCode::CallMismatch)
      wrong(std::string("not a mismatch: ") + error.what());
  }
  return 1;
}

}  // namespace bimetal::testing
