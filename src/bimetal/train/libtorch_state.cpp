#include "bimetal/train/libtorch_state.h"

#include <ATen/Context.h>
#include <fmt/format.h>
#include <torch/csrc/api/include/torch/types.h>
#include <torch/csrc/api/include/torch/utils.h>

#include <cstdlib>
#include <mutex>
#include <span>
#include <utility>

#include "bimetal/base/deadline.h"
#include "bimetal/base/error.h"
#include "bimetal/base/philox.h"
#include "bimetal/checkpoint/starting_point.h"
#include "bimetal/comm/exchange.h"

namespace bimetal::train {

void require_deterministic(const job::JobConfig& job, int ranks) {
  if (!job.train.deterministic) return;
  if (job.parallel.mode == "server") {
    throw Error(ErrorCode::Unsupported,
                "train.deterministic does not go with parallel.mode = \"server\": gradients are "
                "added up in the order in which they arrive; take \"all_reduce\"");
  }
  if (ranks > 1 && job.parallel.balance == balance::Policy::Auto) {
    throw Error(ErrorCode::Unsupported,
                "train.deterministic does not go with parallel.balance = \"auto\": shares follow "
                "the measured speed, and sums are rounded otherwise with other shares; take "
                "\"equal\", or numbers such as [3, 1]");
  }
  if (job.train.precision == "auto" || job.train.memory_format == "auto") {
    throw Error(ErrorCode::Unsupported,
                "train.deterministic does not go with \"auto\" for train.precision or "
                "train.memory_format, which measured times decide on: name what is to be taken");
  }
}

namespace {

bool shapes_stay(const job::JobConfig& job, int ranks) {
  const bool alone = ranks == 1 && job.elastic.min_workers == 0;
  return job.parallel.mode == "all_reduce" &&
         (alone || job.parallel.balance != balance::Policy::Auto);
}

/// libtorch's switch belongs to the process, in which ranks may be threads.
struct MeasuringSwitch {
  std::mutex mutex;
  int users = 0;
  bool before = false;
};

MeasuringSwitch& measuring() {
  static MeasuringSwitch only;
  return only;
}

}  // namespace

KernelChoice::KernelChoice(const job::JobConfig& job, int ranks)
    : deterministic_(job.train.deterministic) {
  const std::scoped_lock lock(measuring().mutex);
  if (measuring().users++ == 0) measuring().before = at::globalContext().benchmarkCuDNN();
  if (!deterministic_) {
    if (shapes_stay(job, ranks)) at::globalContext().setBenchmarkCuDNN(true);
    return;
  }
  // cuBLAS reads it when it is first used, and has no other way to ask.
  ::setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", /*overwrite=*/0);
  auto& context = at::globalContext();
  context.setDeterministicAlgorithms(true, /*warn_only=*/false);
  context.setDeterministicCuDNN(true);
  context.setDeterministicMkldnn(true);
  context.setBenchmarkCuDNN(false);
}

KernelChoice::~KernelChoice() {
  auto& context = at::globalContext();
  const std::scoped_lock lock(measuring().mutex);
  if (--measuring().users == 0) context.setBenchmarkCuDNN(measuring().before);
  if (!deterministic_) return;
  context.setDeterministicAlgorithms(false, /*warn_only=*/false);
  context.setDeterministicCuDNN(false);
  context.setDeterministicMkldnn(false);
}

std::optional<std::string> nondeterministic_operation(const std::string& error) {
  const auto words = error.find(" does not have a deterministic implementation");
  if (words == std::string::npos) return std::nullopt;
  const auto line = error.rfind('\n', words);
  const auto begin = line == std::string::npos ? 0 : line + 1;
  return fmt::format(
      "train.deterministic: '{}' has no deterministic kernel on this device; put another operation "
      "in its place, train on another device, or set train.deterministic = false",
      error.substr(begin, words - begin));
}

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
