#pragma once
// URLs as the place of a dataset, and hiding their secrets in messages. Pure.

#include <string>

namespace bimetal {

/// Whether a job's data path is a URL ("s3://bucket/folder", "https://…") rather than a folder.
bool is_url(const std::string& path);

/// For messages: names and passwords before an '@', and all that follows a '?' or '#' (where signed
/// URLs have their signatures), are replaced by "***". A path that is no URL stays as it is.
std::string without_secrets(const std::string& url);

/// `text`, written by somebody else, with the secrets of `url` replaced by "***" wherever they
/// stand.
std::string without_secrets_of(const std::string& url, std::string text);

}  // namespace bimetal
