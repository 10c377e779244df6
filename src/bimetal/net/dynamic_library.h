#pragma once
// A system library that is loaded at run time and may be missing.

#include <string>

namespace bimetal::net {

/// Stays loaded until the process ends: its registrations with the system must not vanish.
class DynamicLibrary {
 public:
  /// Whether this program can load libraries at run time on this system at all.
  static bool supported() noexcept;

  /// By the system's search path, or by its own path if `name` has a slash. Error(Unsupported) with
  /// the system's words.
  explicit DynamicLibrary(const std::string& name);

  const std::string& name() const noexcept { return name_; }

  /// Address of an exported function or object; nullptr if there is none of that name.
  void* find(const char* symbol) const noexcept;

 private:
  std::string name_;
  void* handle_ = nullptr;
};

}  // namespace bimetal::net
