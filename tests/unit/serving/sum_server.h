#pragma once
// A server with a model that is a sum, and its clients.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "bimetal/serving/client.h"
#include "bimetal/serving/server.h"

namespace bimetal::serving::testing {

using std::chrono::milliseconds;
using ::testing::HasSubstr;
using Pixels = std::vector<std::uint8_t>;

inline constexpr std::int64_t kValues = 6;  // of a sample

inline Deadline in_half_a_minute() {
  return Deadline::after(std::chrono::seconds(30));
}

/// Logits of a sample: the sum of its pixels, and its negative.
class SumModel : public Model {
 public:
  ModelFacts facts() const override {
    return {.release = "1", .model = "sum", .channels = 1, .height = 2, .width = 3, .classes = 2};
  }
  WeightsVersion answer(std::span<const Samples> parts, std::span<double> logits) override {
    if (fails) throw Error(ErrorCode::NotFinite, "it cannot add today");
    computing = true;
    std::this_thread::sleep_for(pause);
    while (held) std::this_thread::sleep_for(milliseconds(1));
    std::size_t next = 0;
    for (const Samples& part : parts) {
      EXPECT_EQ(part.values.size(), static_cast<std::size_t>(part.count * kValues));
      for (std::int64_t i = 0; i < part.count; ++i) {
        double sum = 0;
        for (const auto pixel :
             part.values.subspan(static_cast<std::size_t>(i * kValues), kValues)) {
          sum += static_cast<double>(pixel);
        }
        logits[next++] = sum;
        logits[next++] = -sum;
      }
    }
    EXPECT_EQ(next, logits.size());
    return {++batches, batches + 10};
  }

  std::atomic<bool> fails{false}, held{false}, computing{false};
  std::int64_t batches = 0;
  milliseconds pause{0};
};

inline Pixels some_pixels(std::int64_t samples, unsigned seed) {
  Pixels pixels(static_cast<std::size_t>(samples * kValues));
  for (auto& pixel : pixels) pixel = static_cast<std::uint8_t>(seed = seed * 1103515245 + 12345);
  return pixels;
}

inline std::vector<double> sums_of(const Pixels& pixels) {
  std::vector<double> logits;
  for (std::size_t i = 0; i < pixels.size(); i += kValues) {
    double sum = 0;
    for (std::size_t p = i; p < i + kValues; ++p) sum += pixels[p];
    logits.push_back(sum);
    logits.push_back(-sum);
  }
  return logits;
}

class SumServer : public ::testing::Test {
 protected:
  void serve(BatcherOptions batching = {}, std::size_t max_clients = 256) {
    options_.listen = server_ ? server_->endpoint() : net::Endpoint{"127.0.0.1", 0};
    options_.batching = batching;
    options_.max_clients = max_clients;
    server_.reset();
    server_ = std::make_unique<Server>(options_, model_);
  }
  Client client() { return Client({server_->endpoint(), options_.token, options_.encryption}); }
  Predicted ask(Client& client, const Pixels& pixels) {
    return client.predict(std::as_bytes(std::span(pixels)), comm::DType::uint8,
                          static_cast<std::int64_t>(pixels.size()) / kValues, in_half_a_minute());
  }
  void expect_served() {
    auto other = client();
    const auto pixels = some_pixels(3, 5);
    EXPECT_EQ(ask(other, pixels).logits, sums_of(pixels));
  }
  template <typename Action>
  void expect_error(ErrorCode code, const std::string& text, Action action) {
    try {
      action();
      ADD_FAILURE() << "no error of '" << text << "'";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), code) << error.what();
      EXPECT_THAT(error.what(), HasSubstr(text));
    }
  }

  SumModel model_;
  ServerOptions options_{.listen = {}, .token = net::Token::generate(), .batching = {}};
  std::unique_ptr<Server> server_;
};

}  // namespace bimetal::serving::testing
