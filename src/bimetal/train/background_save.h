#pragma once
// A checkpoint that is written beside the steps which follow it. Private to this folder.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <future>
#include <optional>

#include "bimetal/comm/group.h"

namespace bimetal::train {

struct SavedCheckpoint {
  std::int64_t step = 0;
  std::filesystem::path path = {};  ///< rank 0's
};

/// One at a time. Use from one thread.
class BackgroundSave {
 public:
  using Write = std::function<std::filesystem::path()>;

  BackgroundSave() = default;
  ~BackgroundSave() { end(); }
  BackgroundSave(const BackgroundSave&) = delete;
  BackgroundSave& operator=(const BackgroundSave&) = delete;

  /// Calls `write` on a thread of its own. `group`: that it alone uses, or none. None must be under
  /// way.
  void begin(std::int64_t step, comm::Group group, Write write);

  /// Once it is there, the first time that it is asked; throws what `write` has thrown.
  std::optional<SavedCheckpoint> look();

  /// Waits for it. The checkpoint, unless look() has given it.
  std::optional<SavedCheckpoint> finish();

  /// Ends the group of the save that is under way, on all ranks; finish() throws then. From any
  /// thread, while this object changes or is gone.
  std::function<void()> calling_off() const;

  /// As the group ends: what needs it is called off, on all ranks.
  void end_group();

 private:
  void end();

  std::int64_t step_ = 0;
  comm::Group group_;
  std::future<std::filesystem::path> writing_;
};

}  // namespace bimetal::train
