#include "bimetal/models/language/operations.h"

#include <gtest/gtest.h>

#include "bimetal/models/language/language_model.h"

namespace bimetal::models {
namespace {

/// A product with a matrix takes two operations for each of its numbers and each token.
double of_matrices(const task::Unit& unit, std::int64_t tokens) {
  double numbers = 0;
  for (const auto& [name, tensor] : unit.parameters) {
    if (tensor.dim() == 2) numbers += static_cast<double>(tensor.numel());
  }
  return 2 * numbers * static_cast<double>(tokens);
}

TEST(Operations, AreThoseOfTheModelsMatrices) {
  constexpr std::int64_t kTokens = 24;
  for (const char* name : {"gpt2", "llama"}) {
    const auto config = resized(language_preset(name), {.layers = 2,
                                                        .width = 96,
                                                        .heads = 6,
                                                        .kv_heads = name[0] == 'l' ? 2 : 6,
                                                        .context = 32,
                                                        .vocabulary = 50});
    const auto model = make_language_model(config);
    const auto operations = forward_operations(config, kTokens);
    ASSERT_EQ(operations.size(), model.units.size()) << name;
    EXPECT_EQ(operations.front(), 0);
    EXPECT_DOUBLE_EQ(operations.back(), of_matrices(model.units.back(), kTokens)) << name;
    EXPECT_DOUBLE_EQ(operations[1], of_matrices(model.units[1], kTokens) + 4 * 24 * 24 * 96)
        << name;
    EXPECT_DOUBLE_EQ(operations[2], operations[1]);
  }
}

}  // namespace
}  // namespace bimetal::models
