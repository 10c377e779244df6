#pragma once
// Amounts with units, as people write them.

#include <fmt/format.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace bimetal {

/// Bytes: "2GiB", "512MB"; units B, KB … TB (powers of 1000) and KiB … TiB (of 1024), in any case.
std::optional<double> parse_bytes(std::string_view text);

/// Bytes per second: "1Gbit/s", "940Mbit/s", "16GB/s".
std::optional<double> parse_rate(std::string_view text);

/// Seconds: "0.2ms", "50us", "1s".
std::optional<double> parse_seconds(std::string_view text);

/// A finite number, whatever the program's locale.
std::optional<double> parse_number(std::string_view text);

// Counts with their nouns, for messages ("1 rank", "2 ranks").

/// "1 batch", "2 batches".
inline std::string counted(std::int64_t count, std::string_view one, std::string_view more) {
  return fmt::format("{} {}", count, count == 1 ? one : more);
}

/// "1 worker", "2 workers": of words that take an s.
inline std::string counted(std::int64_t count, std::string_view one) {
  return fmt::format("{} {}{}", count, one, count == 1 ? "" : "s");
}

}  // namespace bimetal
