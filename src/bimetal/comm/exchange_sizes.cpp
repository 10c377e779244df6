#include "bimetal/comm/exchange_sizes.h"

#include <fmt/format.h>

#include <algorithm>

#include "bimetal/base/error.h"

namespace bimetal::comm {

std::size_t checked_size(std::int64_t size, std::int64_t most, int rank) {
  if (size >= 0 && size <= most) return static_cast<std::size_t>(size);
  throw Error(ErrorCode::CorruptData,
              fmt::format("rank {} announces {} bytes, of {} at most", rank, size, most), rank);
}

std::size_t longest_said(std::span<const std::int64_t> sizes) {
  std::size_t longest = 0;
  for (std::size_t rank = 0; rank < sizes.size(); ++rank) {
    longest = std::max(longest, checked_size(sizes[rank], kMostSaid, static_cast<int>(rank)));
  }
  return longest;
}

}  // namespace bimetal::comm
