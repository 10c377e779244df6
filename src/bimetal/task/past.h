#pragma once
// The key-value cache of attention: keys and values of a sequence's earlier positions. With it a
// model that is asked for one more token does not compute the others again.

#include <torch/csrc/api/include/torch/types.h>

#include <cstdint>
#include <map>
#include <utility>

namespace bimetal::task {

/// The cache of sequences that grow together. Use from one thread.
class Past {
 public:
  /// For at most `most` positions: so much memory is taken when a layer is first used.
  explicit Past(std::int64_t most) : most_(most) {}

  /// Positions that all layers have seen: where the next ones begin.
  std::int64_t length() const noexcept { return length_; }

  /// Those of all positions so far, [b, heads, length() + t, d], the last t being `keys` and
  /// `values` [b, heads, t, d], which are remembered for `layer`. Error(InvalidArgument) beyond
  /// `most`.
  std::pair<torch::Tensor, torch::Tensor> join(std::int64_t layer, const torch::Tensor& keys,
                                               const torch::Tensor& values);

  /// Whether a layer has joined. If none does, the model looks at its inputs alone, and must be
  /// given everything.
  bool remembers() const noexcept { return !layers_.empty(); }

  /// After a pass of `positions` through all layers.
  void advance(std::int64_t positions) noexcept { length_ += positions; }

 private:
  struct Remembered {
    torch::Tensor keys, values;  ///< [b, heads, most, d]
  };

  const std::int64_t most_;
  std::int64_t length_ = 0;
  std::map<std::int64_t, Remembered> layers_;
};

/// While it lives, this thread's computations go on from `past`, which must outlive it. Scopes
/// nest.
class PastScope {
 public:
  explicit PastScope(Past& past);
  ~PastScope();
  PastScope(const PastScope&) = delete;
  PastScope& operator=(const PastScope&) = delete;

 private:
  Past* const before_;
};

/// The cache of this thread's scope; nullptr outside of one: sequences are whole.
Past* current_past() noexcept;

/// The first position that this thread computes: 0 outside of a scope.
std::int64_t first_position() noexcept;

}  // namespace bimetal::task
