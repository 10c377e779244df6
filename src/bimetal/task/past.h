#pragma once
// What the positions of a sequence leave for those that come later, so that a model which is asked
// for one more token does not compute the others again: keys and values of its attention.

#include <torch/csrc/api/include/torch/types.h>

#include <cstdint>
#include <map>
#include <utility>

namespace bimetal::task {

/// Of sequences that grow together. Use from one thread.
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

  /// Whether a layer has joined. A whole model of which none does looks at what it is given alone,
  /// and must be given everything.
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

/// While it lives, what this thread computes goes on from `past`, which must outlive it.
/// Scopes nest.
class PastScope {
 public:
  explicit PastScope(Past& past);
  ~PastScope();
  PastScope(const PastScope&) = delete;
  PastScope& operator=(const PastScope&) = delete;

 private:
  Past* const before_;
};

/// Of this thread's scope; nullptr outside of one: sequences are whole.
Past* current_past() noexcept;

/// Where the positions that this thread computes begin: 0 outside of a scope.
std::int64_t first_position() noexcept;

}  // namespace bimetal::task
