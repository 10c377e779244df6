#pragma once
// A block of lines that is drawn anew in place, as `top` does it, on a screen of its own: what was
// on the terminal before is there again afterwards.

#include <string>
#include <vector>

namespace bimetal::cli {

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
