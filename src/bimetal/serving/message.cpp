#include "bimetal/serving/message.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "bimetal/base/error.h"

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

void write_tokens(const std::vector<std::int64_t>& tokens, WireWriter& out) {
  out.i64(static_cast<std::int64_t>(tokens.size()));
  for (const auto token : tokens) out.i64(token);
}

std::vector<std::int64_t> read_tokens(WireReader& in) {
  const auto count = in.i64();
  if (count < 0 || count > kMostTokens) throw Error(ErrorCode::CorruptData, "too many tokens");
  std::vector<std::int64_t> tokens;
  for (std::int64_t i = 0; i < count; ++i) tokens.push_back(in.i64());
  return tokens;
}

}  // namespace

Body encode(const ModelFacts& facts) {
  WireWriter out;
  out.string(facts.release);
  out.string(facts.model);
  out.i64(facts.channels);
  out.i64(facts.height);
  out.i64(facts.width);
  out.i64(facts.classes);
  for (const auto* numbers : {&facts.mean, &facts.stddev}) {
    out.u32(static_cast<std::uint32_t>(numbers->size()));
    for (const double number : *numbers) out.f64(number);
  }
  out.u8(static_cast<std::uint8_t>(facts.dtype));
  out.i64(facts.context);
  return std::move(out).take();
}

ModelFacts decode_model_facts(std::span<const std::byte> body) {
  WireReader in(body);
  ModelFacts facts;
  facts.release = in.string();
  facts.model = in.string();
  facts.channels = in.i64();
  facts.height = in.i64();
  facts.width = in.i64();
  facts.classes = in.i64();
  for (auto* numbers : {&facts.mean, &facts.stddev}) {
    const auto count = in.u32();
    if (count > in.remaining() / 8) throw Error(ErrorCode::CorruptData, "too many channels");
    numbers->resize(count);
    for (double& number : *numbers) number = in.f64();
  }
  facts.dtype = static_cast<comm::DType>(in.u8());
  facts.context = in.i64();
  in.expect_end();
  if (!plausible(facts)) throw Error(ErrorCode::CorruptData, "a model of an impossible shape");
  return facts;
}

Body encode(const TextRequest& request) {
  WireWriter out;
  out.i64(request.tokens);
  out.f64(request.temperature);
  out.i64(request.top_k);
  out.u64(request.seed);
  write_tokens(request.prompt, out);
  return std::move(out).take();
}

TextRequest decode_text_request(std::span<const std::byte> body) {
  WireReader in(body);
  TextRequest request;
  request.tokens = in.i64();
  request.temperature = in.f64();
  request.top_k = in.i64();
  request.seed = in.u64();
  request.prompt = read_tokens(in);
  in.expect_end();
  return request;
}

Body encode(const TextPiece& piece) {
  WireWriter out;
  out.i64(piece.step);
  out.u8(piece.last ? 1 : 0);
  write_tokens(piece.tokens, out);
  return std::move(out).take();
}

TextPiece decode_text_piece(std::span<const std::byte> body) {
  WireReader in(body);
  TextPiece piece;
  piece.step = in.i64();
  piece.last = in.u8() != 0;
  piece.tokens = read_tokens(in);
  in.expect_end();
  return piece;
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
  WireWriter out;
  out.u64(figures.requests);
  out.u64(figures.samples);
  out.u64(figures.batches);
  out.u64(figures.refused);
  out.u64(figures.clients);
  out.f64(figures.latency_median_s);
  out.f64(figures.latency_p99_s);
  return std::move(out).take();
}

Figures decode_figures(std::span<const std::byte> body) {
  WireReader in(body);
  Figures figures;
  figures.requests = in.u64();
  figures.samples = in.u64();
  figures.batches = in.u64();
  figures.refused = in.u64();
  figures.clients = in.u64();
  figures.latency_median_s = in.f64();
  figures.latency_p99_s = in.f64();
  in.expect_end();
  return figures;
}

}  // namespace bimetal::serving
