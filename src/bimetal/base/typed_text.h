#pragma once
// What people type: amounts with units, names that are known and may be mistyped, and URLs, whose
// secrets no message shows.

#include <fmt/format.h>

#include <cstdint>
#include <optional>
#include <span>
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

/// The entry of `known` that takes the fewest edits to reach from `word`: inserting, removing or
/// replacing a character, or swapping two neighbours (optimal string alignment distance; Damerau
/// 1964). Upper and lower case, and '-' and '_', count as alike. Among equals the first listed
/// wins. Empty only if `known` is empty.
std::string_view nearest_name(std::string_view word, std::span<const std::string_view> known);

/// The same, but only if that takes one edit, or as many as a third of the word's characters.
std::optional<std::string_view> similar_name(std::string_view word,
                                             std::span<const std::string_view> known);

/// Whether a job's data path is a URL ("s3://bucket/folder", "https://…") rather than a folder.
bool is_url(const std::string& path);

/// For messages: names and passwords before an '@', and all that follows a '?' or '#' (where signed
/// URLs have their signatures), are replaced by "***". A path that is no URL stays as it is.
std::string without_secrets(const std::string& url);

/// `text`, written by somebody else, with the secrets of `url` replaced by "***" wherever they
/// stand.
std::string without_secrets_of(const std::string& url, std::string text);

}  // namespace bimetal
