// Shortened gradients from the worker's codec into a server's store.

#include <gtest/gtest.h>
#include <torch/csrc/api/include/torch/optim.h>
#include <torch/csrc/api/include/torch/types.h>
#include <torch/csrc/api/include/torch/utils.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "bimetal/base/error.h"
#include "bimetal/parallel/server/codec.h"
#include "bimetal/parallel/server/shard_store.h"

namespace bimetal::parallel::server {
namespace {

constexpr std::int64_t kRows = 24, kCols = 40, kCount = kRows * kCols;
constexpr auto kFloat32 = static_cast<std::uint8_t>(comm::DType::float32);

std::span<const std::byte> bytes_of_values(const torch::Tensor& values) {
  return {static_cast<const std::byte*>(values.data_ptr()), values.nbytes()};
}

/// A worker and a server that keeps one matrix, from which it subtracts each gradient.
class Pushes {
 public:
  explicit Pushes(const PushCompression& how, std::int64_t piece_elements = kCount)
      : plan_(
            plan_shards(std::vector<std::int64_t>{kCount}, std::vector<double>{1}, piece_elements)),
        store_(plan_, 0, {start_},
               [](std::vector<torch::Tensor> parameters) {
                 return std::make_unique<torch::optim::SGD>(parameters,
                                                            torch::optim::SGDOptions(1.0));
               }),
        codec_(how, {start_}) {}

  /// Whether all of it was finite.
  bool push(const torch::Tensor& gradient) {
    const std::uint64_t lease = ++lease_;
    sent_ = 0;
    for (std::uint32_t i = 0; i < plan_.pieces.size(); ++i) {
      const auto& piece = plan_.pieces[i];
      const auto plain = bytes_of_values(gradient).subspan(
          4 * static_cast<std::size_t>(piece.offset), 4 * static_cast<std::size_t>(piece.count));
      const auto encoded = codec_.encode(0, piece, plain);
      const auto payload = encoded.bytes ? std::span<const std::byte>(*encoded.bytes) : plain;
      const auto place = store_.place(lease, i, kFloat32, encoded.bytes ? encoded.form : PushForm{},
                                      payload.size());
      std::memcpy(place.data(), payload.data(), payload.size());
      store_.received(lease, i);
      sent_ += payload.size();
    }
    const bool finite = store_.close_lease(lease, plan_.pieces.size());
    store_.apply(lease, {1, 1, {lease}, {}});
    return finite;
  }

  /// The sum of all that was sent, as the server sees it.
  torch::Tensor sum() const { return -*store_.values(); }
  std::size_t sent() const { return sent_; }
  PushCodec& codec() { return codec_; }

 private:
  torch::Tensor start_ = torch::zeros({kRows, kCols});
  ShardPlan plan_;
  ShardStore store_;
  PushCodec codec_;
  std::uint64_t lease_ = 0;
  std::size_t sent_ = 0;
};

struct Shortened {
  PushCompression how;
  std::size_t bytes;
};

const Shortened shortened[] = {
    {{.scheme = comm::Scheme::none}, 4 * kCount},
    {{.scheme = comm::Scheme::float16}, 2 * kCount},
    {{.scheme = comm::Scheme::bfloat16}, 2 * kCount},
    {{.scheme = comm::Scheme::int8}, kCount + 2 * 8},
    {{.scheme = comm::Scheme::int4}, kCount / 2 + 2 * 8},
    {{.scheme = comm::Scheme::topk, .density = 0.1}, 8 * kCount / 10},
    {{.scheme = comm::Scheme::powersgd, .rank = 2}, 4 * 2 * (kRows + kCols)},
    {{.scheme = comm::Scheme::sign}, kCount / 8 + 8 + 2 * 2},
};

// Values lost once come later. After many equal gradients their sum is there, except for the
// residual, which does not grow. Without feedback topk would never send most elements.
TEST(PushCodec, WhatIsLostIsSentLater) {
  torch::manual_seed(1);
  const auto gradient = torch::randn({kCount});
  constexpr int kPushes = 4000;
  for (const auto& [how, bytes] : shortened) {
    Pushes pushes(how);
    for (int i = 0; i < kPushes; ++i) EXPECT_TRUE(pushes.push(gradient));
    const auto mean = pushes.sum() / kPushes;
    const float owed = how.scheme == comm::Scheme::sign ? 0.3f : 0.12f;  // 1 bit per element
    EXPECT_LT((mean - gradient).abs().max().item<float>(), owed) << comm::to_string(how.scheme);
    EXPECT_LE(pushes.sent(), bytes + 8) << comm::to_string(how.scheme);
    EXPECT_GE(pushes.sent() + 8, bytes) << comm::to_string(how.scheme);
  }
}

TEST(PushCodec, ALowRankGradientArrivesWhole) {
  torch::manual_seed(2);
  const auto gradient = torch::mm(torch::randn({kRows, 2}), torch::randn({2, kCols})).flatten();
  Pushes pushes({.scheme = comm::Scheme::powersgd, .rank = 3});
  EXPECT_TRUE(pushes.push(gradient));
  EXPECT_LT((pushes.sum() - gradient).abs().max().item<float>(), 1e-4);
}

TEST(PushCodec, PartsOfATensorHaveNoFactors) {
  torch::manual_seed(3);
  const auto gradient = torch::randn({kCount});
  Pushes pushes({.scheme = comm::Scheme::powersgd, .rank = 1}, kCount / 2);
  EXPECT_TRUE(pushes.push(gradient));
  EXPECT_TRUE(torch::equal(pushes.sum(), gradient));
}

TEST(PushCodec, TopkSendsMoreAtFirst) {
  Pushes pushes({.scheme = comm::Scheme::topk, .density = 0.01, .warmup_steps = 40});
  for (const auto& [step, share] : {std::pair{0, 0.25}, {10, 0.0625}, {20, 0.015625}, {40, 0.01}}) {
    pushes.codec().set_step(step);
    pushes.push(torch::ones({kCount}));
    EXPECT_EQ(pushes.sent(), 8 * static_cast<std::size_t>(std::ceil(share * kCount))) << step;
  }
}

TEST(PushCodec, WhatIsNotFiniteIsSeenOnceAndForgotten) {
  for (const auto& [how, bytes] : shortened) {
    Pushes pushes(how);
    auto gradient = torch::ones({kCount});
    gradient[7] = std::numeric_limits<float>::quiet_NaN();
    gradient[8] = std::numeric_limits<float>::infinity();
    EXPECT_FALSE(pushes.push(gradient)) << comm::to_string(how.scheme);
    EXPECT_TRUE(pushes.push(torch::ones({kCount}))) << comm::to_string(how.scheme);
  }
}

TEST(PushForm, RefusesWhatNoPieceCanHave) {
  using comm::Scheme;
  const comm::Matrix matrix{kRows, kCols}, row{1, kCount};
  for (const auto& form : {PushForm{Scheme::topk, 0},
                           {Scheme::topk, kCount + 1},
                           {Scheme::powersgd, 0},
                           {Scheme::powersgd, kRows},
                           {Scheme::powersgd, 1u << 31},
                           {Scheme::int8, 1},
                           {static_cast<Scheme>(77), 0}}) {
    EXPECT_THROW(pushed_bytes(form, matrix), Error) << form.detail;
  }
  EXPECT_THROW(pushed_bytes({Scheme::powersgd, 1}, row), Error);
  const std::uint32_t twice[] = {5, 5, 0, 0};
  std::vector<float> values(kCount);
  EXPECT_THROW(decode_push({Scheme::topk, 2}, row, std::as_bytes(std::span(twice)), values), Error);
}

}  // namespace
}  // namespace bimetal::parallel::server
