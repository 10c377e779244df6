#include "bimetal/net/pairing/machines.h"

#include <fmt/format.h>

#include <algorithm>
#include <asio/ip/host_name.hpp>
#include <fstream>

#include "bimetal/base/error.h"
#include "bimetal/base/files.h"

namespace bimetal::net {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMaxNameLength = 63;
constexpr std::size_t kHexDigits = 2 * noise::kKeyBytes;

bool is_alphanumeric(char c) noexcept {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

/// The host's name without its domain, made fit for is_machine_name().
std::string name_of_host() {
  std::string name = asio::ip::host_name();
  name = name.substr(0, std::min(name.find('.'), kMaxNameLength));
  std::ranges::replace_if(
      name, [](char c) { return !is_alphanumeric(c) && c != '_'; }, '-');
  std::ranges::transform(name, name.begin(), [](char c) {
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  });
  return name.empty() ? "machine" : name;
}

void require_owner_alone([[maybe_unused]] const fs::path& path) {
#ifndef _WIN32
  using fs::perms;
  if ((fs::status(path).permissions() & (perms::group_all | perms::others_all)) == perms::none) {
    return;
  }
  throw Error(ErrorCode::InvalidArgument,
              fmt::format("{} is open to other users, who may know its key; forget that machine "
                          "(bimetal machines forget {}) and let it in anew",
                          path.string(), path.filename().string()));
#endif
}

std::string line_of(const fs::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

/// The folder is closed to others before the file is there, so that no moment is left.
void write_private(const fs::path& path, const std::string& text) {
  std::error_code error;
  const auto folder = path.parent_path();
  fs::create_directories(folder, error);
  if (!error) fs::permissions(folder, fs::perms::owner_all, error);
  if (error) throw system_error(fmt::format("cannot make folder {}", folder.string()), error);
  auto part = path;
  part += ".part";
  fs::remove(part, error);
  {
    std::ofstream file(part, std::ios::trunc);
    fs::permissions(part, fs::perms::owner_read | fs::perms::owner_write, error);
    file << text << '\n';
    file.close();
    if (!file || error) {
      throw Error(ErrorCode::System, fmt::format("cannot write {}", path.string()));
    }
  }
  fs::rename(part, path, error);
  if (error) throw system_error(fmt::format("cannot write {}", path.string()), error);
}

}  // namespace

bool is_machine_name(std::string_view name) noexcept {
  if (name.empty() || name.size() > kMaxNameLength || name.front() == '.') return false;
  return std::ranges::all_of(
      name, [](char c) { return is_alphanumeric(c) || c == '.' || c == '_' || c == '-'; });
}

Machines Machines::of_user() {
  if (auto folder = path_in_environment("XDG_CONFIG_HOME"); !folder.empty()) {
    return Machines(folder / "bimetal");
  }
  const auto home = path_in_environment("HOME");
  if (home.empty()) {
    throw Error(ErrorCode::InvalidArgument,
                "machines are remembered in ~/.config/bimetal, but HOME is not set: set it, or "
                "XDG_CONFIG_HOME");
  }
  return Machines(home / ".config" / "bimetal");
}

std::string Machines::own_name() const {
  const auto path = folder_ / "name";
  std::error_code error;
  if (!fs::exists(path, error)) {
    const auto name = name_of_host();
    try {
      write_private(path, name);
    } catch (const Error&) {
      // The host's name will do where nothing can be kept.
    }
    return name;
  }
  auto name = line_of(path);
  if (is_machine_name(name)) return name;
  throw Error(ErrorCode::InvalidArgument,
              fmt::format("{} holds no name: one line of at most {} letters, digits and '-'",
                          path.string(), kMaxNameLength));
}

fs::path Machines::path_of(std::string_view name) const {
  if (!is_machine_name(name)) {
    throw Error(ErrorCode::InvalidArgument,
                "a machine's name has letters, digits, '.', '_' and '-', at most 63");
  }
  return folder_ / "machines" / name;
}

std::optional<noise::Key> Machines::find(std::string_view name) const {
  const auto path = path_of(name);
  std::error_code error;
  if (!fs::exists(path, error)) return std::nullopt;
  require_owner_alone(path);
  auto text = line_of(path);
  noise::Key key;
  std::size_t length = 0;
  const bool good = sodium_hex2bin(reinterpret_cast<unsigned char*>(key.data()), key.size(),
                                   text.data(), text.size(), nullptr, &length, nullptr) == 0 &&
                    text.size() == kHexDigits && length == key.size();
  sodium_memzero(text.data(), text.size());
  if (good) return key;
  throw Error(ErrorCode::InvalidArgument,
              fmt::format("{} holds no key; forget that machine (bimetal machines forget {}) and "
                          "let it in anew",
                          path.string(), name));
}

void Machines::remember(std::string_view name, const noise::Key& key) const {
  std::string text(kHexDigits + 1, '\0');
  sodium_bin2hex(text.data(), text.size(), reinterpret_cast<const unsigned char*>(key.data()),
                 key.size());
  text.pop_back();
  write_private(path_of(name), text);
  sodium_memzero(text.data(), text.size());
}

bool Machines::forget(std::string_view name) const {
  const auto path = path_of(name);
  std::error_code error;
  const bool was_there = fs::remove(path, error);
  if (error) throw system_error(fmt::format("cannot remove {}", path.string()), error);
  return was_there;
}

std::vector<std::string> Machines::names() const {
  std::vector<std::string> names;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder_ / "machines", error)) {
    auto name = entry.path().filename().string();
    if (is_machine_name(name) && !name.ends_with(".part")) names.push_back(std::move(name));
  }
  std::ranges::sort(names);
  return names;
}

}  // namespace bimetal::net
