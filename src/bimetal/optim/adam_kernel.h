#pragma once
// Adam's and AdamW's update in one pass over memory, together with other work that would need
// passes of its own: the gradients' factor (unscaling and clipping) before it and a copy in
// bfloat16 after it. Kingma and Ba, "Adam", ICLR 2015, Algorithm 1; Loshchilov and Hutter,
// "Decoupled Weight Decay Regularization", ICLR 2019, Algorithm 2. Pure functions, without
// libtorch.

#include <cstddef>
#include <cstdint>

namespace bimetal::optim {

/// The numbers that are the same for all elements of a range.
struct AdamNumbers {
  double rate = 1e-3;                 ///< libtorch's lr
  double beta1 = 0.9, beta2 = 0.999;  ///< libtorch's betas
  double epsilon = 1e-8;              ///< libtorch's eps
  double weight_decay = 0;            ///< likewise
  bool decoupled = true;              ///< AdamW's decay; otherwise it is added to the gradient
  std::int64_t step = 1;              ///< this one's number, from 1
  double gradient_factor = 1;         ///< gradients are taken times that
};

/// `count` elements in contiguous memory that does not overlap.
template <typename Real>
struct AdamElements {
  Real* parameters;                    ///< changed
  const Real* gradients;               ///< as backward gave them
  Real* means;                         ///< exp_avg
  Real* squares;                       ///< exp_avg_sq
  std::uint16_t* bfloat16s = nullptr;  ///< of the new parameters, rounded to even; null: no copy
  std::size_t count = 0;               ///< elements of each
};

/// Steps them. Safe from any thread for elements of which no other thread has any.
void adam_pass(const AdamElements<float>& elements, const AdamNumbers& numbers) noexcept;
/// The same in double precision.
void adam_pass(const AdamElements<double>& elements, const AdamNumbers& numbers) noexcept;

}  // namespace bimetal::optim
