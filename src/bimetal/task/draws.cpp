#include "bimetal/task/draws.h"

#include <fmt/format.h>

#include <numeric>
#include <utility>

#include "bimetal/base/error.h"

namespace bimetal::task {
namespace {

std::shared_ptr<const Draws>& innermost() noexcept {
  thread_local std::shared_ptr<const Draws> draws;
  return draws;
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

}  // namespace bimetal::task
