#pragma once
// The messages of a server of predictions and its clients after the handshake: frames of
// net/frame.h whose `operation` is a MessageKind. docs/protocol.md lists the layouts. Bodies are
// decoded with bounded lengths and throw Error(CorruptData) for anything that does not fit.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "bimetal/base/error.h"
#include "bimetal/comm/dtype.h"

namespace bimetal::serving {

/// The numeric values are part of the wire format and never change.
enum class MessageKind : std::uint8_t {
  welcome = 1,  ///< server → client, once, first. Body: ModelFacts
  predict = 2,  ///< client → server: `count` samples of `dtype`; `sequence`: the request
  predicted =
      3,        ///< server → client: the answer to request `sequence`. Body: PredictedHead, logits
  refused = 4,  ///< server → client: request `sequence`, or with 0 the connection. Body: an Error
  ask_figures = 5,  ///< client → server: request `sequence`
  figures = 6,      ///< server → client. Body: Figures
  write = 7,    ///< client → server: text to go on with; `sequence`: the request. Body: TextRequest
  written = 8,  ///< server → client: more of answer `sequence`. Body: TextPiece
};

/// Neither a request's samples nor its answer's logits take more.
inline constexpr std::size_t kMaxRequestBytes = std::size_t{16} << 20;
/// All other bodies are no longer than that.
inline constexpr std::size_t kMaxBodyBytes = std::size_t{64} << 10;
/// The key under which a job's directory (its rendezvous store) names the server: HOST:PORT.
inline constexpr const char* kDirectoryKey = "predictions";

using Body = std::vector<std::byte>;

/// The served model, and the form of its samples.
struct ModelFacts {
  std::string release;  ///< the server's
  std::string model;    ///< its name
  std::int64_t channels = 0, height = 0, width = 0, classes = 0;
  /// For a language model: the tokens that it looks back at. Its classes are its vocabulary. It
  /// takes no samples, but text to go on with. 0: a model of images.
  std::int64_t context = 0;
  /// Pixels x become (x/255 − mean) ÷ stddev: one number for each channel, or one for all.
  std::vector<double> mean = {0}, stddev = {1};
  comm::DType dtype = comm::DType::float32;  ///< that it computes in

  std::int64_t values_per_sample() const noexcept { return channels * height * width; }
  bool operator==(const ModelFacts&) const = default;
};
Body encode(const ModelFacts& facts);
ModelFacts decode_model_facts(std::span<const std::byte> body);

/// Samples may be uint8 (pixels, as files hold them) or float32 or float64 (as the model takes
/// them: already normalised).
bool is_sample_type(comm::DType dtype) noexcept;

/// Samples that one request may have at most; 0: not even one fits.
std::int64_t most_samples(const ModelFacts& facts, comm::DType dtype) noexcept;

/// Which weights have answered: optimizer steps that they have learnt from. A request that was
/// computed in several batches may have seen newer ones on the way.
struct WeightsVersion {
  std::int64_t oldest = 0, newest = 0;
  bool operator==(const WeightsVersion&) const = default;
};

/// The answer: i64 oldest, i64 newest, then f64 logits [samples, classes].
struct Predicted {
  WeightsVersion weights;
  std::vector<double> logits;
};
Body encode(const Predicted& predicted);
/// Error(CorruptData) unless there are `logits` of them.
Predicted decode_predicted(std::span<const std::byte> body, std::size_t logits);
constexpr std::size_t predicted_bytes(std::size_t logits) {
  return 16 + 8 * logits;
}

/// Neither a prompt nor its continuation is longer.
inline constexpr std::int64_t kMostTokens = std::int64_t{1} << 20;

/// A request to a language model.
struct TextRequest {
  std::int64_t tokens = 200;         ///< how many are drawn
  double temperature = 1;            ///< logits are divided by it; 0: always the likeliest token
  std::int64_t top_k = 0;            ///< > 0: only so many of the likeliest are drawn
  std::uint64_t seed = 0;            ///< of the draws
  std::vector<std::int64_t> prompt;  ///< at least one
  bool operator==(const TextRequest&) const = default;
};
Body encode(const TextRequest& request);
TextRequest decode_text_request(std::span<const std::byte> body);

/// Some of an answer's tokens.
struct TextPiece {
  std::int64_t step = 0;  ///< optimizer steps that the weights have learnt from
  bool last = false;
  std::vector<std::int64_t> tokens;
  bool operator==(const TextPiece&) const = default;
};
Body encode(const TextPiece& piece);
TextPiece decode_text_piece(std::span<const std::byte> body);

/// An Error, as the other side is to throw it.
Body encode(const Error& error);
Error decode_refused(std::span<const std::byte> body);

/// A server's totals since it started.
struct Figures {
  std::uint64_t requests = 0, samples = 0;         ///< answered
  std::uint64_t batches = 0;                       ///< computed
  std::uint64_t refused = 0;                       ///< requests that got no answer
  std::uint64_t clients = 0;                       ///< connected now
  double latency_median_s = 0, latency_p99_s = 0;  ///< of the last 1000, from arrival to answer
  bool operator==(const Figures&) const = default;
};
Body encode(const Figures& figures);
Figures decode_figures(std::span<const std::byte> body);

}  // namespace bimetal::serving
