#pragma once
// Units that several ranks compute together, each with its part of the large tensors (tensor
// parallelism: Shoeybi et al., "Megatron-LM", 2019, section 3). The activations between units are
// whole and the same on all of these ranks. Or each rank has some positions of every sequence
// (sequence parallelism: Korthikanti et al., "Reducing activation recomputation in large
// transformer models", 2022, section 4.2.2). A model's maths is written once, by the functions
// below: they do nothing where a rank has everything.

#include <torch/csrc/api/include/torch/types.h>

#include <cstdint>
#include <memory>
#include <optional>

namespace bimetal::task {

/// Items `first` … `first + count - 1` of a row.
struct Part {
  std::int64_t first = 0, count = 0;  ///< of those in a row
  bool operator==(const Part&) const = default;
};

/// The ranks that compute a unit together. All of them make the same calls in the same order.
class TensorRanks {
 public:
  virtual ~TensorRanks() = default;

  /// Which of `pieces` that stay whole are this rank's.
  virtual Part part(std::int64_t pieces) const = 0;
  /// Which positions of the activations between units are here. Nothing: all of them.
  virtual std::optional<Part> positions() const { return std::nullopt; }
  /// `x`, for all positions; its gradient is the sum of the ranks' gradients.
  virtual torch::Tensor shared(const torch::Tensor& x) const = 0;
  /// The sum of the ranks' `x`, for the positions here; its gradient is that of each of them.
  virtual torch::Tensor sum(const torch::Tensor& x) const = 0;
  /// As cross_entropy_sum(), from the logits of part(vocabulary).
  virtual torch::Tensor cross_entropy_sum(const torch::Tensor& logits, const torch::Tensor& targets,
                                          std::int64_t vocabulary, std::int64_t ignored) const = 0;
};

/// While it lives, this thread computes with the others' parts in mind. Scopes nest; nullptr: with
/// everything.
class TensorScope {
 public:
  /// On this thread, until it goes.
  explicit TensorScope(std::shared_ptr<const TensorRanks> ranks);
  ~TensorScope();
  TensorScope(const TensorScope&) = delete;
  TensorScope& operator=(const TensorScope&) = delete;

 private:
  std::shared_ptr<const TensorRanks> before_;
};

/// The ranks of this thread's innermost scope; nullptr outside of all.
const std::shared_ptr<const TensorRanks>& current_tensor_ranks() noexcept;

/// Which of `pieces` are computed here: all of them outside of a scope.
Part part_here(std::int64_t pieces);

/// Which positions of the activations between units, [samples, positions, …], are here. Nothing:
/// all.
std::optional<Part> positions_here();

/// Before a layer that makes parts (a matrix cut by its columns): `x` [samples, positions here, …]
/// of all positions.
torch::Tensor shared_by_tensor_ranks(const torch::Tensor& x);

/// After a layer on parts (a matrix cut by its rows), [samples, all positions, …]: the sum of the
/// parts, at the positions here.
torch::Tensor sum_over_tensor_ranks(const torch::Tensor& x);

/// The sum of cross-entropies of `logits` [n, those of the vocabulary that are here] for `targets`
/// int64 [n], but for those that are `ignored`; one number, the same on all ranks that share it.
torch::Tensor cross_entropy_sum(const torch::Tensor& logits, const torch::Tensor& targets,
                                std::int64_t vocabulary, std::int64_t ignored);

}  // namespace bimetal::task
