#include "bimetal/plan/mesh/transformer_facts.h"

#include <fmt/format.h>

#include <algorithm>

namespace bimetal::plan {
namespace {

constexpr double kTera = 1e12;
constexpr double kSavedByBlock = 16, kPassingInBlock = 8;
constexpr double kSavedWhole = 4, kPassingWhole = 4;  // of these, on each tensor rank
constexpr double kSumsOfBlock = 2;                    // in each direction
constexpr std::int64_t kHead = 64;                    // numbers
constexpr double kLogitBytes = 4;                     // the loss is computed in float32

Linear each(double per_sample) {
  return {0, per_sample};
}

/// Attention by heads, 4·w² elements, and the MLP by columns, 8·w²: all that takes time.
PartFacts parts_of_block(const TransformerSizes& sizes, double tokens) {
  const auto square = sizes.width * sizes.width;
  const auto heads = sizes.heads > 0 ? sizes.heads : std::max<std::int64_t>(1, sizes.width / kHead);
  const auto summed = each(kSumsOfBlock * tokens);
  return {
      .splits = {{heads, 4 * square, 4 * square, 0}, {4 * sizes.width, 8 * square, 8 * square, 0}},
      .saved = kSavedWhole / kSavedByBlock,
      .forward_peak = (kSavedWhole + 2) / (kSavedByBlock + 2),
      .backward_peak = (kSavedWhole + kPassingWhole) / (kSavedByBlock + kPassingInBlock),
      .forward_s = 0,
      .backward_s = 0,
      .forward_sums = kSumsOfBlock,
      .backward_sums = kSumsOfBlock,
      .forward_summed_bytes = summed,
      .backward_summed_bytes = summed};
}

/// Its matrix is cut by tokens, and its output summed.
PartFacts parts_of_embedding(const TransformerSizes& sizes, double tokens) {
  const auto table = sizes.vocabulary * sizes.width;
  return {.splits = {{sizes.vocabulary, table, 0, table}},
          .forward_sums = 1,
          .forward_summed_bytes = each(tokens)};
}

/// Logits stay in parts: three numbers for each token travel (parallel/tensor/vocabulary_loss.h).
PartFacts parts_of_head(const TransformerSizes& sizes, double tokens, double logits) {
  return {.splits = {{sizes.vocabulary, sizes.vocabulary * sizes.width, 0, 0}},
          .saved = tokens / (2 * logits + tokens),
          .forward_peak = tokens / (logits + tokens),
          .backward_peak = 2 * tokens / (3 * logits + 2 * tokens),
          .forward_s = 0,
          .backward_s = 0,
          .forward_sums = 2,
          .backward_sums = 1,
          .forward_summed_bytes = each(3 * kLogitBytes * static_cast<double>(sizes.context)),
          .backward_summed_bytes = each(tokens)};
}

UnitFacts block_of(const TransformerSizes& sizes, std::int64_t number) {
  const auto t = static_cast<double>(sizes.context), w = static_cast<double>(sizes.width);
  const double tokens = t * w * sizes.activation_bytes;
  const double operations = 24 * t * w * w + 4 * t * t * w;
  return {.name = fmt::format("block {}", number),
          .parameters = 12 * sizes.width * sizes.width + 13 * sizes.width,
          .output = each(tokens),
          .saved = each(kSavedByBlock * tokens),
          .forward_peak = each((kSavedByBlock + 2) * tokens),
          .backward_peak = each((kSavedByBlock + kPassingInBlock) * tokens),
          .forward_s = each(operations / kTera),
          .backward_s = each((kForwardsOfStep - 1) * operations / kTera),
          .operations = operations,
          .in_parts = parts_of_block(sizes, tokens)};
}

}  // namespace

ModelFacts transformer_facts(const TransformerSizes& sizes) {
  const auto t = static_cast<double>(sizes.context), w = static_cast<double>(sizes.width);
  const double tokens = t * w * sizes.activation_bytes;
  ModelFacts facts;
  facts.units.push_back({.name = "embedding",
                         .parameters = sizes.context * sizes.width,
                         .shared = sizes.vocabulary * sizes.width,
                         .output = each(tokens),
                         .saved = each(tokens),
                         .forward_peak = each(2 * tokens),
                         .backward_peak = each(2 * tokens),
                         .in_parts = parts_of_embedding(sizes, tokens)});
  for (std::int64_t layer = 0; layer < sizes.layers; ++layer) {
    facts.units.push_back(block_of(sizes, layer));
  }
  const double logits = t * static_cast<double>(sizes.vocabulary) * kLogitBytes;
  const double operations = 2 * t * w * static_cast<double>(sizes.vocabulary);
  facts.units.push_back({.name = "head",
                         .parameters = 2 * sizes.width,
                         .output = each(logits),
                         .saved = each(2 * logits + tokens),
                         .forward_peak = each(2 * logits + 2 * tokens),
                         .backward_peak = each(3 * logits + 2 * tokens),
                         .forward_s = each(operations / kTera),
                         .backward_s = each((kForwardsOfStep - 1) * operations / kTera),
                         .operations = operations,
                         .in_parts = parts_of_head(sizes, tokens, logits)});
  facts.element_bytes = sizes.element_bytes;
  facts.state_bytes = sizes.state_bytes;
  facts.batch_bytes = 8 * (t + 1);
  facts.sample_weight = sizes.context;
  return facts;
}

}  // namespace bimetal::plan
