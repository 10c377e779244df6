#include "bimetal/train/notices.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <system_error>

#include "bimetal/base/error.h"
#include "bimetal/device/out_of_memory.h"
#include "bimetal/train/libtorch_state.h"

namespace bimetal::train {

namespace {

/// Also for a thread that cannot be started, which may be for lack of memory or of permission.
std::string first_line(const std::exception& exception) {
  if (dynamic_cast<const std::system_error*>(&exception)) return to_error(exception).what();
  const auto* of_torch = dynamic_cast<const c10::Error*>(&exception);
  const std::string text = of_torch ? of_torch->what_without_backtrace() : exception.what();
  return text.substr(0, text.find('\n'));
}

}  // namespace

Error error_of(const std::exception& exception, const std::string& who, std::optional<int> rank) {
  const bool memory = device::is_out_of_memory(std::current_exception());
  const auto refused = nondeterministic_operation(first_line(exception));
  const auto code = memory    ? ErrorCode::OutOfMemory
                    : refused ? ErrorCode::Unsupported
                              : ErrorCode::Internal;
  return Error(code,
               fmt::format("{}{}: {}", who, memory ? " ran out of memory" : "",
                           refused ? *refused : first_line(exception)),
               rank);
}

std::string remedy(const progress::RankFigures& rank, std::int64_t cap) {
  switch (rank.fit) {
    case progress::Fit::try_recomputing: return "it computes activations again for backward";
    case progress::Fit::try_without_graphs: return "it launches its kernels one by one";
    case progress::Fit::try_smaller_pieces: return "it computes them in smaller micro-batches";
    case progress::Fit::too_large: return fmt::format("its share is capped at {}", cap);
    case progress::Fit::fits: break;
  }
  return {};
}

void IdleRanks::tell(const balance::Shares& shares, std::int64_t global_batch,
                     progress::Observer& observer) {
  idle_.resize(shares.size());
  for (std::size_t rank = 0; rank < shares.size(); ++rank) {
    const bool idle = shares[rank] == 0;
    if (idle && !idle_[rank]) {
      observer.on_notice(
          fmt::format("rank {} gets no samples: the others finish a batch of {} sooner without it",
                      rank, global_batch));
    }
    idle_[rank] = idle;
  }
}

}  // namespace bimetal::train
