#include <signal.h>

#include "bimetal/cli/lite/lite.h"

int main(int argc, char** argv) {
  // A closed pipe, or a file that may not grow, is an error of that write and not the program's
  // end.
  ::signal(SIGPIPE, SIG_IGN);
  ::signal(SIGXFSZ, SIG_IGN);
  return bimetal::cli::run_lite({argv, argv + argc});
}
