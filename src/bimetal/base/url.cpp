#include "bimetal/base/url.h"

#include <algorithm>
#include <cctype>
#include <vector>

namespace bimetal {
namespace {

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

}  // namespace

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
