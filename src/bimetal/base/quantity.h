#pragma once
// Amounts with units, as people write them.

#include <optional>
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

}  // namespace bimetal
