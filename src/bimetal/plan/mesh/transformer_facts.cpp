#include "bimetal/plan/mesh/transformer_facts.h"

#include <fmt/format.h>

namespace bimetal::plan {
namespace {

constexpr double kTera = 1e12;
constexpr double kSavedByBlock = 16, kPassingInBlock = 8;
constexpr double kLogitBytes = 4;  // the loss is computed in float32

Linear each(double per_sample) {
  return {0, per_sample};
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
          .backward_s = each(2 * operations / kTera)};
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
                         .backward_peak = each(2 * tokens)});
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
                         .backward_s = each(2 * operations / kTera)});
  facts.element_bytes = sizes.element_bytes;
  facts.state_bytes = sizes.state_bytes;
  facts.batch_bytes = 8 * (t + 1);
  facts.sample_weight = sizes.context;
  return facts;
}

}  // namespace bimetal::plan
