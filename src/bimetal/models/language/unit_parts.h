#pragma once
// The parts of the units of language models.

#include <torch/csrc/api/include/torch/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "bimetal/models/language/language_model.h"
#include "bimetal/task/dropout.h"
#include "bimetal/task/unit.h"

namespace bimetal::models {

/// The deviation of weights, unless a model has reasons for another (Radford et al. 2019;
/// transformers' initializer_range).
inline constexpr double kWeightDeviation = 0.02;

/// Makes the parameters of one unit, under their names, and the unit itself.
class UnitParts {
 public:
  /// `prefix`: "transformer.h.0." for parameters "transformer.h.0.ln_1.weight"; `number`: the
  /// unit's place in the model.
  UnitParts(std::string name, std::string prefix, const LanguageModelConfig& config,
            std::int64_t number);

  /// From a normal distribution around 0 with that standard deviation.
  torch::Tensor drawn(const std::string& name, c10::IntArrayRef sizes,
                      double deviation = kWeightDeviation);
  torch::Tensor ones(const std::string& name, std::int64_t size);
  torch::Tensor zeros(const std::string& name, std::int64_t size);
  /// How the parameter made last may be cut: task::TensorSplit.
  void may_be_cut(std::int64_t dim, std::int64_t grain = 1, std::int64_t segments = 1);
  /// The parameter made last is one of task::Unit::products.
  void only_multiplied();
  /// One that another unit has, too.
  torch::Tensor shared(const std::string& name, const torch::Tensor& parameter);

  /// Dropout of what flows between units, at a place of this one below kMostPlaces; none in
  /// evaluation.
  struct Dropout {
    double p;
    std::int64_t layer;
    std::shared_ptr<const bool> training;
    double rate() const { return *training ? p : 0; }
    torch::Tensor operator()(const torch::Tensor& x) const;
  };
  Dropout dropout(std::int64_t place) const;

  /// Once, at the end.
  task::Unit unit(std::function<torch::Tensor(const torch::Tensor& x)> forward) &&;

 private:
  static constexpr std::int64_t kMostPlaces = 4;

  torch::Tensor add(const std::string& name, torch::Tensor parameter);

  std::string prefix_;
  double dropout_;
  std::int64_t number_;
  std::shared_ptr<bool> training_ = std::make_shared<bool>(true);
  task::Unit unit_;
};

/// `table`'s rows for tokens [b, t], for the positions that are here. The table holds the part of
/// the vocabulary that is here (task/tensor_ranks.h). Errors as make_language_model has them.
torch::Tensor embed(const torch::Tensor& table, const torch::Tensor& tokens,
                    const LanguageModelConfig& config);

/// `weight`, which another unit uses, too, for a product. The gradient of a product is a transposed
/// view, to whose base autograd holds on: it would add the other unit's gradient out of place, in a
/// third tensor of that size. The gradient of the tensor returned here has no base.
torch::Tensor added_in_place(const torch::Tensor& weight);

// Causal attention over heads, as GPT-2 and Llama have it in common.

/// [b, t, heads × d] as [b, heads, t, d], `width` being d.
torch::Tensor split_heads(const torch::Tensor& x, std::int64_t width);

/// Attention of each position to those up to itself: softmax(q·kᵀ ÷ √d)·v (Vaswani et al. 2017,
/// section 3.2.1), by torch's fused kernels. `q` is [b, heads, t, d], `k` and `v` are [b, kv_heads,
/// t, d], each of them for heads ÷ kv_heads heads of q in a row (Ainslie et al. 2023). In a
/// PastScope (task/past.h) it includes positions before these. Returns [b, t, heads × d]. With
/// `dropout` > 0 the weights are dropped by task::dropout for `layer`, which the fused kernels
/// cannot do: they are then held, t × t for each head. `heads`: which of the model's q holds.
torch::Tensor causal_attention(const torch::Tensor& q, const torch::Tensor& k,
                               const torch::Tensor& v, double dropout, std::int64_t layer,
                               task::HeadRange heads);

/// The heads of the model that are computed here (task/tensor_ranks.h): whole groups that share one
/// head of keys and values.
task::HeadRange heads_here(std::int64_t heads, std::int64_t kv_heads);

}  // namespace bimetal::models
