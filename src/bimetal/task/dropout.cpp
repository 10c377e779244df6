#include "bimetal/task/dropout.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <torch/csrc/api/include/torch/types.h>
#include <torch/csrc/api/include/torch/utils.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <utility>
#include <vector>

#include "bimetal/base/error.h"
#include "bimetal/base/philox.h"

namespace bimetal::task {
namespace {

std::shared_ptr<const Draws>& innermost() noexcept {
  thread_local std::shared_ptr<const Draws> draws;
  return draws;
}

std::uint64_t& made() noexcept {
  thread_local std::uint64_t made = 0;
  return made;
}

}  // namespace

PhiloxKey key_of(const Draws& draws, std::int64_t place) {
  const auto low = [](std::uint64_t number) { return static_cast<std::uint32_t>(number); };
  const auto high = [&](std::uint64_t number) { return low(number >> 32); };
  const auto epoch = static_cast<std::uint64_t>(draws.epoch);
  const auto at = static_cast<std::uint64_t>(place);
  const auto block =
      philox({low(epoch), high(epoch), low(at), high(at)}, {low(draws.seed), high(draws.seed)});
  return {block[0], block[1]};
}

Draws Draws::of_nobody(std::int64_t samples) {
  Draws draws;
  draws.samples.resize(static_cast<std::size_t>(samples));
  std::iota(draws.samples.begin(), draws.samples.end(), std::int64_t{0});
  return draws;
}

Draws Draws::slice(std::int64_t begin, std::int64_t end) const {
  if (begin < 0 || begin > end || end > static_cast<std::int64_t>(samples.size())) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("samples {} … {} of a batch are to be computed, but it is drawn for {}",
                            begin, end, samples.size()));
  }
  return {seed, epoch, {samples.begin() + begin, samples.begin() + end}};
}

DrawScope::DrawScope(std::shared_ptr<const Draws> draws)
    : before_(std::exchange(innermost(), std::move(draws))) {}

DrawScope::DrawScope(Draws draws) : DrawScope(std::make_shared<const Draws>(std::move(draws))) {}

DrawScope::~DrawScope() {
  innermost() = std::move(before_);
}

const std::shared_ptr<const Draws>& current_draws() noexcept {
  return innermost();
}

std::uint64_t draws_made() noexcept {
  return made();
}

namespace {

constexpr std::int64_t kWord = 0xFFFFFFFF;

std::uint32_t low(std::int64_t number) {
  return static_cast<std::uint32_t>(number & kWord);
}

std::uint32_t high(std::int64_t number) {
  return low(number >> 32);
}

/// A number below it is dropped.
std::uint32_t threshold_of(double p) {
  return static_cast<std::uint32_t>(std::floor(p * 4294967296.0));
}

/// A row's number among all heads. It does not depend on the number of rows, which padding changes.
/// `head` counts those that are here.
std::int64_t row_number(std::int64_t row, std::int64_t head, HeadRange heads) {
  return row * heads.of + heads.first + head;
}

HeadRange known(HeadRange heads, std::int64_t here) {
  return heads.of == 0 ? HeadRange{0, here} : heads;
}

// A counter is (columns ÷ 4, row, sample), a key one of a layer in an epoch.
torch::Tensor dropped_on_cpu(c10::IntArrayRef sizes, HeadRange range, std::int64_t first_row,
                             const Draws& draws, PhiloxKey key, std::uint32_t threshold) {
  const auto heads = sizes[1], rows = sizes[2], columns = sizes[3];
  auto mask = torch::empty(sizes, torch::kBool);
  auto* out = mask.mutable_data_ptr<bool>();
  const auto grain = std::max<std::int64_t>(1, 16384 / std::max<std::int64_t>(1, columns));
  at::parallel_for(0, sizes[0] * heads * rows, grain, [&](std::int64_t begin, std::int64_t end) {
    for (auto line = begin; line < end; ++line) {
      const auto sample = draws.samples[static_cast<std::size_t>(line / (heads * rows))];
      const auto row = row_number(first_row + line % rows, line / rows % heads, range);
      auto* to = out + line * columns;
      for (std::int64_t column = 0; column < columns; column += 4) {
        const auto drawn = philox({low(column / 4), low(row), low(sample), high(sample)}, key);
        const auto count = std::min<std::int64_t>(4, columns - column);
        for (std::int64_t i = 0; i < count; ++i) {
          to[column + i] = drawn[static_cast<std::size_t>(i)] < threshold;
        }
      }
    }
  });
  return mask;
}

/// Upper and lower half of the product. Words are in int64: devices have no unsigned numbers, and
/// the product's 64 bits are the same.
std::pair<torch::Tensor, torch::Tensor> multiply(std::uint32_t by, const torch::Tensor& word) {
  const auto product = word * static_cast<std::int64_t>(by);
  return {product.bitwise_right_shift(32).bitwise_and_(kWord), product.bitwise_and(kWord)};
}

/// philox() on tensors that broadcast.
std::array<torch::Tensor, 4> philox_of(std::array<torch::Tensor, 4> counter, PhiloxKey key) {
  for (int round = 0; round < kPhiloxRounds; ++round) {
    auto [a_high, a_low] = multiply(kPhiloxMultipliers[0], counter[0]);
    auto [b_high, b_low] = multiply(kPhiloxMultipliers[1], counter[2]);
    counter = {b_high.bitwise_xor(counter[1]).bitwise_xor_(std::int64_t{key[0]}), std::move(b_low),
               a_high.bitwise_xor(counter[3]).bitwise_xor_(std::int64_t{key[1]}), std::move(a_low)};
    key = {key[0] + kPhiloxWeyl[0], key[1] + kPhiloxWeyl[1]};
  }
  return counter;
}

const Draws& draws_for(std::int64_t samples) {
  ++made();
  const auto& draws = current_draws();
  if (!draws) {
    throw Error(ErrorCode::InvalidArgument,
                "dropout must know whom it draws for: compute in a task::DrawScope, or call "
                "eval() on the model first");
  }
  if (static_cast<std::int64_t>(draws->samples.size()) != samples) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("dropout got {} samples in a task::DrawScope of {}: a unit must keep "
                            "the samples in the first dimension",
                            samples, draws->samples.size()));
  }
  return *draws;
}

}  // namespace

torch::Tensor dropped_by_kernels(c10::IntArrayRef sizes, double p, std::int64_t layer,
                                 const torch::Device& device, HeadRange range,
                                 std::int64_t first_row) {
  const torch::NoGradGuard no_grad;
  const auto& draws = draws_for(sizes[0]);
  const auto heads = sizes[1], rows = sizes[2], columns = sizes[3];
  const auto options = torch::dtype(torch::kInt64).device(device);
  const auto blocks = torch::arange((columns + 3) / 4, options).view({1, 1, 1, -1});
  range = known(range, heads);
  const auto row = torch::arange(range.first, range.first + heads, options).view({-1, 1}) +
                   torch::arange(first_row, first_row + rows, options).view({1, -1}) * range.of;
  const auto samples = torch::tensor(draws.samples, torch::kInt64).to(device).view({-1, 1, 1, 1});
  const auto words = philox_of({blocks, row.view({1, heads, rows, 1}), samples.bitwise_and(kWord),
                                samples.bitwise_right_shift(32).bitwise_and(kWord)},
                               key_of(draws, layer));
  std::vector<torch::Tensor> below;
  for (const auto& word : words) below.push_back(word.lt(std::int64_t{threshold_of(p)}));
  return torch::stack(below, -1).flatten(3).narrow(3, 0, columns);
}

torch::Tensor dropped(c10::IntArrayRef sizes, double p, std::int64_t layer,
                      const torch::Device& device, HeadRange range, std::int64_t first_row) {
  if (!device.is_cpu()) return dropped_by_kernels(sizes, p, layer, device, range, first_row);
  const auto& draws = draws_for(sizes[0]);
  return dropped_on_cpu(sizes, known(range, sizes[1]), first_row, draws, key_of(draws, layer),
                        threshold_of(p));
}

torch::Tensor dropout_by_sample(const torch::Tensor& x, double p, std::int64_t layer,
                                HeadRange range, std::int64_t first_row) {
  if (p == 0) return x;
  const bool heads = x.dim() == 4;
  const std::array<std::int64_t, 4> sizes = {x.size(0), heads ? x.size(1) : 1, x.size(-2),
                                             x.size(-1)};
  // masked_fill keeps the mask for backward, a byte for each number, and the factor nothing.
  const auto mask = dropped(sizes, p, layer, x.device(), range, first_row).view(x.sizes());
  return x.masked_fill(mask, 0) * (1 / (1 - p));
}

}  // namespace bimetal::task
