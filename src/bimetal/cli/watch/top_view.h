#pragma once
// A job's status as a person reads it.

#include <string>
#include <vector>

#include "bimetal/monitor/status.h"

namespace bimetal::cli {

/// What `bimetal top` shows, line by line; control characters of what the job says are taken out.
std::vector<std::string> status_lines(const monitor::Status& status);

/// For a terminal alone (is_capable_terminal()). Use from one thread.
class Screen {
 public:
  Screen();
  ~Screen();
  Screen(const Screen&) = delete;
  Screen& operator=(const Screen&) = delete;

  /// Lines beyond the terminal's size are cut.
  void draw(const std::vector<std::string>& lines);
};

}  // namespace bimetal::cli
