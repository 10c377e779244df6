#include "bimetal/train/random_states.h"

#include <fmt/format.h>
#include <torch/csrc/api/include/torch/types.h>
#include <torch/csrc/api/include/torch/utils.h>

#include <span>
#include <utility>

#include "bimetal/base/deadline.h"
#include "bimetal/base/philox.h"
#include "bimetal/checkpoint/starting_point.h"
#include "bimetal/comm/exchange.h"

namespace bimetal::train {

std::optional<std::string> alike_random_states(comm::Group group,
                                               std::chrono::milliseconds timeout) {
  const auto state = checkpoint::random_state();
  const auto all =
      comm::all_gather_bytes(group, std::as_bytes(std::span(state)), Deadline::after(timeout));
  for (std::size_t rank = 1; rank < all.size(); ++rank) {
    for (std::size_t other = 0; other < rank; ++other) {
      if (all[rank] != all[other]) continue;
      return fmt::format(
          "ranks {} and {} draw the same random numbers for different samples: is torch seeded "
          "alike on all ranks (torch.manual_seed) after the model is made?",
          other, rank);
    }
  }
  return std::nullopt;
}

DrawsApart::DrawsApart(const job::JobConfig& job, comm::Group group)
    : job_(job), group_(std::move(group)), due_(job.parallel.exact == "relaxed") {}

void DrawsApart::begin(std::int64_t step) const {
  if (!due_) return;
  const auto low = [](std::uint64_t number) { return static_cast<std::uint32_t>(number); };
  const auto steps = static_cast<std::uint64_t>(step), seed = job_.train.seed;
  const auto rank = static_cast<std::uint64_t>(group_.rank());
  const auto drawn =
      philox({low(rank), low(steps), low(steps >> 32), 0}, {low(seed), low(seed >> 32)});
  torch::manual_seed((std::uint64_t{drawn[1]} << 32 | drawn[0]) >> 1);
}

void DrawsApart::look(progress::Observer& observer) {
  if (!std::exchange(due_, false)) return;
  const auto text = alike_random_states(group_, milliseconds_of(job_.parallel.timeout_s));
  if (text) observer.on_notice(*text);
}

}  // namespace bimetal::train
