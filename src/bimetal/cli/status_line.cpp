#include "bimetal/cli/status_line.h"

#include "bimetal/cli/terminal.h"

namespace bimetal::cli {

StatusLine::~StatusLine() {
  clear_line_of_others();
}

void StatusLine::show(const std::string& text) {
  if (!errors_are_live()) return;
  clear_line_of_others();
  constexpr int kColumns = 79;  // of the narrowest terminal in use: a longer line would wrap
  write_to(stderr, cut_to(text, kColumns));
}

}  // namespace bimetal::cli
