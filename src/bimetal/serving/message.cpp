#include "bimetal/serving/message.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "bimetal/base/wire_fields.h"

namespace bimetal::serving {
namespace {

// Larger images or more classes would not fit a request; smaller factors keep the product in range.
constexpr std::int64_t kMostOfEach = std::int64_t{1} << 20;

bool plausible(const ModelFacts& facts) {
  const bool text = facts.context > 0;
  if (facts.classes < 1 || facts.classes > kMostOfEach || facts.context > kMostOfEach) return false;
  for (const auto size : {facts.channels, facts.height, facts.width}) {
    if (size < (text ? 0 : 1) || size > kMostOfEach) return false;
  }
  const auto for_channels = [&](const std::vector<double>& numbers) {
    return numbers.size() == 1 || static_cast<std::int64_t>(numbers.size()) == facts.channels;
  };
  return for_channels(facts.mean) && for_channels(facts.stddev) &&
         std::ranges::all_of(facts.mean, [](double mean) { return std::isfinite(mean); }) &&
         std::ranges::all_of(facts.stddev, [](double x) { return std::isfinite(x) && x > 0; }) &&
         (facts.dtype == comm::DType::float32 || facts.dtype == comm::DType::float64);
}

}  // namespace

template <typename Wire>
void fields(Wire& wire, ModelFacts& facts) {
  wire(facts.release, facts.model, facts.channels, facts.height, facts.width, facts.classes,
       facts.mean, facts.stddev, facts.dtype, facts.context);
}

template <typename Wire>
void fields(Wire& wire, TextRequest& request) {
  wire(request.tokens, request.temperature, request.top_k, request.seed, request.prompt);
}

template <typename Wire>
void fields(Wire& wire, TextPiece& piece) {
  wire(piece.step, piece.last, piece.tokens);
}

template <typename Wire>
void fields(Wire& wire, Figures& figures) {
  wire(figures.requests, figures.samples, figures.batches, figures.refused, figures.clients,
       figures.latency_median_s, figures.latency_p99_s);
}

Body encode(const ModelFacts& facts) {
  return write_fields(facts);
}
ModelFacts decode_model_facts(std::span<const std::byte> body) {
  auto facts = read_fields<ModelFacts>(body);
  if (!plausible(facts)) throw Error(ErrorCode::CorruptData, "a model of an impossible shape");
  return facts;
}

Body encode(const TextRequest& request) {
  return write_fields(request);
}
TextRequest decode_text_request(std::span<const std::byte> body) {
  return read_fields<TextRequest>(body);
}

Body encode(const TextPiece& piece) {
  return write_fields(piece);
}
TextPiece decode_text_piece(std::span<const std::byte> body) {
  return read_fields<TextPiece>(body);
}

bool is_sample_type(comm::DType dtype) noexcept {
  return dtype == comm::DType::uint8 || dtype == comm::DType::float32 ||
         dtype == comm::DType::float64;
}

std::int64_t most_samples(const ModelFacts& facts, comm::DType dtype) noexcept {
  const auto most = static_cast<double>(kMaxRequestBytes);
  const double in =
      most / (static_cast<double>(facts.channels) * static_cast<double>(facts.height) *
              static_cast<double>(facts.width) * static_cast<double>(comm::size_of(dtype)));
  const double out = (most - 16) / (8.0 * static_cast<double>(facts.classes));
  return static_cast<std::int64_t>(std::min(in, out));
}

Body encode(const Predicted& predicted) {
  WireWriter out;
  out.i64(predicted.weights.oldest);
  out.i64(predicted.weights.newest);
  for (const double logit : predicted.logits) out.f64(logit);
  return std::move(out).take();
}

Predicted decode_predicted(std::span<const std::byte> body, std::size_t logits) {
  if (body.size() != predicted_bytes(logits)) {
    throw Error(ErrorCode::CorruptData, fmt::format("an answer of {} bytes, where {} were expected",
                                                    body.size(), predicted_bytes(logits)));
  }
  WireReader in(body);
  Predicted predicted;
  predicted.weights.oldest = in.i64();
  predicted.weights.newest = in.i64();
  predicted.logits.resize(logits);
  for (double& logit : predicted.logits) logit = in.f64();
  in.expect_end();
  return predicted;
}

Body encode(const Error& error) {
  WireWriter out;
  write_error(out, error, kMaxBodyBytes / 2);
  return std::move(out).take();
}

Error decode_refused(std::span<const std::byte> body) {
  return read_error(body);
}

Body encode(const Figures& figures) {
  return write_fields(figures);
}
Figures decode_figures(std::span<const std::byte> body) {
  return read_fields<Figures>(body);
}

}  // namespace bimetal::serving
