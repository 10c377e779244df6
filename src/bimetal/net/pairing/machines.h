#pragma once
// The machines that have once been let in by a code, or have let this one in: a key for each pair,
// in files that only their owner can read. With it the next shared job needs no code.
//
//   ~/.config/bimetal/name             what this machine is called
//   ~/.config/bimetal/machines/NAME    the key that this machine and NAME have in common

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "bimetal/net/noise.h"

namespace bimetal::net {

/// Letters, digits, '.', '_' and '-', at most 63, and no '.' in front: fit for a file and for
/// people's eyes.
bool is_machine_name(std::string_view name) noexcept;

/// Use from one thread. Errors: System; InvalidArgument for a file that others can read, or that
/// holds no key, saying what to do.
class Machines {
 public:
  explicit Machines(std::filesystem::path folder) : folder_(std::move(folder)) {}

  /// In $XDG_CONFIG_HOME/bimetal, or ~/.config/bimetal. Error(InvalidArgument) where neither
  /// XDG_CONFIG_HOME nor HOME is set.
  static Machines of_user();

  /// The host's name when it was first asked for: a network may change that.
  std::string own_name() const;

  std::optional<noise::Key> find(std::string_view name) const;

  /// Takes the place of an older key. The caller judges whether it may.
  void remember(std::string_view name, const noise::Key& key) const;

  /// False if there is none of that name.
  bool forget(std::string_view name) const;

  /// Names, sorted.
  std::vector<std::string> names() const;

 private:
  std::filesystem::path path_of(std::string_view name) const;

  std::filesystem::path folder_;
};

}  // namespace bimetal::net
