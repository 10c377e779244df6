#pragma once
// What the program is busy with, on standard error: a line that is gone when the work is done, so
// that standard output holds results alone.

#include <string>

namespace bimetal::cli {

/// Shows nothing where standard error is no terminal that lines can be taken off. Use from one
/// thread.
class StatusLine {
 public:
  StatusLine() = default;
  ~StatusLine();
  StatusLine(const StatusLine&) = delete;
  StatusLine& operator=(const StatusLine&) = delete;

  /// Takes the place of what was shown before.
  void show(const std::string& text);
};

}  // namespace bimetal::cli
