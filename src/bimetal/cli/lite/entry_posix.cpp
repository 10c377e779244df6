#include <signal.h>

#include "bimetal/cli/lite/entry.h"

extern "C" int bimetal_lite_main(int count, char** words) {
  // A closed pipe, or a file that may not grow, is an error of that write and not the program's
  // end.
  ::signal(SIGPIPE, SIG_IGN);
  ::signal(SIGXFSZ, SIG_IGN);
  return bimetal::cli::run_lite({words, words + count});
}
