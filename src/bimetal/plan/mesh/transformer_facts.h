#pragma once
// Facts of a language model from its sizes, without a measurement, for clusters that are not there.

#include <cstdint>

#include "bimetal/plan/model_facts.h"

namespace bimetal::plan {

struct TransformerSizes {
  std::int64_t layers = 12, width = 768, context = 1024, vocabulary = 50257;
  std::int64_t heads = 0;    ///< 0: of 64 numbers each
  int element_bytes = 4;     ///< of parameters and gradients
  int activation_bytes = 4;  ///< of what is computed
  double state_bytes = 8;    ///< of the optimizer for each parameter
};

/// Embedding, blocks and a head that shares its matrix: units as models/language has them. Seconds
/// are those of a device of 1 TFLOP/s: 24·T·w² + 4·T²·w operations for a block's forward and twice
/// as many for its backward (Narayanan et al., SC 2021, appendix), 2·T·w·V for the head's. A block
/// saves 16 numbers for each token and element of the width, its attention being computed again in
/// backward (Korthikanti et al., MLSys 2023, §4.1, less the dropout masks); the head two for each
/// logit, and three while it runs. In parts, 4 of a block's 16 numbers stay whole on each rank (the
/// inputs of normalisations and of what is cut by columns: §4.2 there), and its input is summed
/// twice in forward and in backward (Shoeybi et al. 2019, §3).
ModelFacts transformer_facts(const TransformerSizes& sizes);

}  // namespace bimetal::plan
