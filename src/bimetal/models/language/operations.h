#pragma once
// How much a language model computes, by its sizes.

#include <cstdint>
#include <vector>

#include "bimetal/models/language/language_config.h"

namespace bimetal::models {

/// Multiplications and additions of each unit's forward for a sample of so many tokens: of matrix
/// products, and of attention as if it looked at all tokens (Narayanan et al., SC 2021, appendix).
/// A backward takes twice as many.
std::vector<double> forward_operations(const LanguageModelConfig& config, std::int64_t tokens);

}  // namespace bimetal::models
