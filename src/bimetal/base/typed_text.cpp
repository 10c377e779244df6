#include "bimetal/base/typed_text.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstddef>
#include <limits>
#include <locale>
#include <numeric>
#include <span>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

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

char folded(char c) {
  if (c >= 'A' && c <= 'Z') return static_cast<char>(c - 'A' + 'a');
  return c == '-' ? '_' : c;
}

bool alike(char a, char b) {
  return folded(a) == folded(b);
}

/// Fills the table of prefix distances row by row; only the last three rows are ever read.
std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> before_last(b.size() + 1), last(b.size() + 1), row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::swap(before_last, last);
    std::swap(last, row);
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t replaced = last[j - 1] + (alike(a[i - 1], b[j - 1]) ? 0 : 1);
      row[j] = std::min({replaced, last[j] + 1, row[j - 1] + 1});
      const bool swapped = i > 1 && j > 1 && alike(a[i - 1], b[j - 2]) && alike(a[i - 2], b[j - 1]);
      if (swapped) row[j] = std::min(row[j], before_last[j - 2] + 1);
    }
  }
  return row[b.size()];
}

constexpr const char* kHidden = "***";
constexpr std::size_t kShortest = 3;  // replacing single letters would garble every message

/// Runs of `url` that are secret, longest first. A chained URL ("zip://a::s3://k:s@b/c.zip") has
/// several names and passwords.
std::vector<std::string> secrets_of(const std::string& url) {
  std::vector<std::string> secrets;
  for (auto begin = url.find("://"); begin != std::string::npos; begin = url.find("://", begin)) {
    begin += 3;
    const auto authority = url.substr(begin, url.find_first_of("/?#", begin) - begin);
    const auto at = authority.rfind('@');
    if (at == std::string::npos) continue;
    const auto user = authority.substr(0, at);
    secrets.push_back(user);
    if (const auto colon = user.find(':'); colon != std::string::npos) {
      secrets.push_back(user.substr(colon + 1));
    }
  }
  if (const auto query = url.find_first_of("?#"); query != std::string::npos) {
    auto rest = url.substr(query + 1);
    secrets.push_back(rest);
    while (!rest.empty()) {  // libraries may show the parameters one by one
      const auto end = rest.find_first_of("&#?;");
      const auto parameter = rest.substr(0, end);
      if (const auto equals = parameter.find('='); equals != std::string::npos) {
        secrets.push_back(parameter.substr(equals + 1));
      }
      rest = end == std::string::npos ? "" : rest.substr(end + 1);
    }
  }
  std::erase_if(secrets, [](const std::string& secret) { return secret.empty(); });
  std::ranges::sort(secrets, std::ranges::greater(), &std::string::size);
  return secrets;
}

/// "a%2Fb" as "a/b", as a library may show it.
std::string percent_decoded(const std::string& text) {
  std::string decoded;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto is_digit = [&](std::size_t at) {
      return at < text.size() && std::isxdigit(static_cast<unsigned char>(text[at]));
    };
    if (text[i] == '%' && is_digit(i + 1) && is_digit(i + 2)) {
      decoded += static_cast<char>(std::stoi(text.substr(i + 1, 2), nullptr, 16));
      i += 2;
    } else {
      decoded += text[i];
    }
  }
  return decoded;
}

void replace_all(std::string& text, const std::string& what, const std::string& by) {
  for (auto at = text.find(what); at != std::string::npos; at = text.find(what, at + by.size())) {
    text.replace(at, what.size(), by);
  }
}

/// And how many edits it takes.
std::pair<std::string_view, std::size_t> nearest(std::string_view word,
                                                 std::span<const std::string_view> known) {
  std::pair<std::string_view, std::size_t> found{{}, std::numeric_limits<std::size_t>::max()};
  for (const std::string_view name : known) {
    const std::size_t edits = edit_distance(word, name);
    if (edits < found.second) found = {name, edits};
  }
  return found;
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

std::string_view nearest_name(std::string_view word, std::span<const std::string_view> known) {
  return nearest(word, known).first;
}

std::optional<std::string_view> similar_name(std::string_view word,
                                             std::span<const std::string_view> known) {
  const auto [name, edits] = nearest(word, known);
  if (name.empty() || edits > std::max<std::size_t>(1, word.size() / 3)) return std::nullopt;
  return name;
}

bool is_url(const std::string& path) {
  const auto colon = path.find("://");
  if (colon == std::string::npos || colon < 2) return false;  // one letter is a drive
  const auto in_scheme = [](unsigned char c) {
    return std::isalnum(c) || c == '+' || c == '-' || c == '.' || c == ':';  // "simplecache::s3"
  };
  return std::all_of(path.begin(), path.begin() + static_cast<std::ptrdiff_t>(colon), in_scheme);
}

std::string without_secrets(const std::string& url) {
  if (!is_url(url)) return url;
  std::string shown = url;
  if (const auto query = shown.find_first_of("?#"); query != std::string::npos) {
    shown = shown.substr(0, query + 1) + kHidden;
  }
  for (auto begin = shown.find("://"); begin != std::string::npos;
       begin = shown.find("://", begin)) {
    begin += 3;
    const auto end = std::min(shown.find('/', begin), shown.size());
    const auto at = shown.substr(0, end).rfind('@');
    if (at != std::string::npos && at >= begin) shown.replace(begin, at - begin, kHidden);
  }
  return shown;
}

std::string without_secrets_of(const std::string& url, std::string text) {
  replace_all(text, url, without_secrets(url));
  for (const auto& secret : secrets_of(url)) {
    for (const auto& form : {secret, percent_decoded(secret)}) {
      if (form.size() >= kShortest) replace_all(text, form, kHidden);
    }
  }
  return text;
}

}  // namespace bimetal
