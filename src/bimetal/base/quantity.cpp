#include "bimetal/base/quantity.h"

#include <algorithm>
#include <cmath>
#include <locale>
#include <span>
#include <sstream>
#include <string>

namespace bimetal {
namespace {

struct UnitOfAmount {
  std::string_view name;
  double factor;
};

constexpr UnitOfAmount kByteUnits[] = {{"TiB", 1099511627776.0},
                                       {"GiB", 1073741824.0},
                                       {"MiB", 1048576.0},
                                       {"KiB", 1024.0},
                                       {"TB", 1e12},
                                       {"GB", 1e9},
                                       {"MB", 1e6},
                                       {"KB", 1e3},
                                       {"B", 1.0}};

constexpr UnitOfAmount kRateUnits[] = {
    {"Tbit/s", 1e12 / 8}, {"Gbit/s", 1e9 / 8}, {"Mbit/s", 1e6 / 8}, {"Kbit/s", 1e3 / 8},
    {"TB/s", 1e12},       {"GB/s", 1e9},       {"MB/s", 1e6},       {"KB/s", 1e3}};

constexpr UnitOfAmount kTimeUnits[] = {
    {"ms", 1e-3}, {"us", 1e-6}, {"µs", 1e-6}, {"ns", 1e-9}, {"s", 1.0}};

bool equal_in_any_case(std::string_view a, std::string_view b) {
  const auto lower = [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; };
  return std::ranges::equal(a, b, {}, lower, lower);
}

std::optional<double> parse_amount(std::string_view text, std::span<const UnitOfAmount> units) {
  const auto digits = std::min(text.find_first_not_of("0123456789."), text.size());
  const auto name = text.substr(digits);
  const auto number = parse_number(text.substr(0, digits));
  const auto unit = std::ranges::find_if(
      units, [&](const UnitOfAmount& u) { return equal_in_any_case(u.name, name); });
  if (!number || unit == units.end()) return std::nullopt;
  return *number * unit->factor;
}

}  // namespace

std::optional<double> parse_bytes(std::string_view text) {
  return parse_amount(text, kByteUnits);
}

std::optional<double> parse_rate(std::string_view text) {
  return parse_amount(text, kRateUnits);
}

std::optional<double> parse_seconds(std::string_view text) {
  return parse_amount(text, kTimeUnits);
}

// std::from_chars for double is missing from some standard libraries, and strtod obeys the
// program's locale; a stream with the classic one does neither.
std::optional<double> parse_number(std::string_view text) {
  std::istringstream stream{std::string(text)};
  stream.imbue(std::locale::classic());
  double value = 0;
  stream >> std::noskipws >> value;
  if (stream.fail() || stream.peek() != std::istringstream::traits_type::eof() ||
      !std::isfinite(value)) {
    return std::nullopt;
  }
  return value;
}

}  // namespace bimetal
