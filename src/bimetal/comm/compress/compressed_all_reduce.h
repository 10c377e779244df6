#pragma once
// Compressed all-reduce of the same buckets step after step, with the error feedback of each.

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "bimetal/comm/compress/compression.h"
#include "bimetal/comm/group.h"

namespace bimetal::comm {

/// One float32 array of the state, by name: BUCKET.residual, BUCKET.velocity or BUCKET.basis.
struct NamedValues {
  std::string name;
  std::vector<float> values;

  friend bool operator==(const NamedValues&, const NamedValues&) = default;
};

/// Use from one thread. Every rank makes the same calls in the same order. State is read and
/// changed only while no call is in flight.
class CompressedAllReduce {
 public:
  explicit CompressedAllReduce(Group group, CompressedAllReduceOptions options);

  /// Group::all_reduce with the bucket's own memory. A bucket keeps its name and number of elements
  /// and is in flight at most once. `matrices`: see Compression.
  Work all_reduce(const std::string& bucket, Buffer data, ReduceOp op = ReduceOp::sum,
                  std::vector<Matrix> matrices = {}, std::optional<Deadline> deadline = {});

  /// Where the training stands, for the warm-up; 0 at first.
  void set_step(std::int64_t step) noexcept { step_ = step; }

  /// This rank's state, sorted by name.
  std::vector<NamedValues> state() const;

  /// Takes the place of this rank's state. Error(InvalidArgument) for a name that state() does not
  /// give.
  void set_state(std::span<const NamedValues> state);

  /// The error feedback of all ranks together, for a world of any size. It is the same on each
  /// rank, except BUCKET.basis: between islands only those ranks have it that stand for an island,
  /// as rank 0 does. Collective; throws what Work::wait() would.
  std::vector<NamedValues> whole_state(std::optional<Deadline> deadline = {});

  /// Takes this rank's part of a whole_state(): an equal one for each rank that sends compressed
  /// messages. Called on all ranks.
  void set_whole_state(std::vector<NamedValues> state);

  /// After the world has changed: goes on in `group` and forgets everything.
  void reset(Group group);

 private:
  Group group_;
  CompressedAllReduceOptions options_;
  std::int64_t step_ = 0;
  std::map<std::string, std::shared_ptr<BucketMemory>> memories_;
};

}  // namespace bimetal::comm
