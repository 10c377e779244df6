#pragma once
// Counts with their nouns, for messages ("1 rank", "2 ranks").

#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace bimetal {

/// "1 batch", "2 batches".
inline std::string counted(std::int64_t count, std::string_view one, std::string_view more) {
  return fmt::format("{} {}", count, count == 1 ? one : more);
}

/// "1 worker", "2 workers": of words that take an s.
inline std::string counted(std::int64_t count, std::string_view one) {
  return fmt::format("{} {}{}", count, one, count == 1 ? "" : "s");
}

}  // namespace bimetal
