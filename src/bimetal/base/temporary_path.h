#pragma once
// A file or folder under construction. It is made beside its final place under another name, and
// moved there in one step when it is complete. So readers of the final name see the old or the new
// contents, never a part.

#include <filesystem>
#include <memory>
#include <string_view>

#include "bimetal/base/os_files.h"

namespace bimetal {

/// Named `.NAME.<16 hex digits>.tmp` beside its target. Removed in the end unless moved. Errors are
/// Error(System) and name the target. Not thread-safe.
class TemporaryPath {
 public:
  enum class Kind { file, folder };

  /// Creates it, empty.
  TemporaryPath(std::filesystem::path target, Kind kind);
  ~TemporaryPath();
  TemporaryPath(const TemporaryPath&) = delete;
  TemporaryPath& operator=(const TemporaryPath&) = delete;

  const std::filesystem::path& path() const noexcept { return path_; }
  const std::filesystem::path& target() const noexcept { return target_; }

  /// Takes the target's place; whatever stood there is gone. The contents must be on the disk.
  void move_into_place();

 private:
  bool create();

  std::filesystem::path target_;
  std::filesystem::path path_;
  Kind kind_;
  std::unique_ptr<PathClaim> claim_;
};

/// Of which targets leftovers are meant, beside a name.
enum class Leftovers {
  of_name,       ///< of that very name
  of_numbering,  ///< of names, too, that differ in their numbers alone: step-00000001, step-20
  of_all         ///< of any, whatever the name
};

/// Removes what killed processes left in `folder` while making these targets. What a living process
/// works on stays, and so does everything where the file system cannot tell (no locks). Never
/// throws: leftovers only take room.
void remove_leftovers(const std::filesystem::path& folder, std::string_view name,
                      Leftovers which = Leftovers::of_name) noexcept;

}  // namespace bimetal
