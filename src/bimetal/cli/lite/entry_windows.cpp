#include <windows.h>

#include "bimetal/cli/lite/entry.h"
#include "bimetal/launch/system/environment.h"

namespace {

/// Text is UTF-8, whatever code page the console has had; it gets that back.
class Utf8Console {
 public:
  Utf8Console() : before_(GetConsoleOutputCP()) { SetConsoleOutputCP(CP_UTF8); }
  ~Utf8Console() { SetConsoleOutputCP(before_); }
  Utf8Console(const Utf8Console&) = delete;
  Utf8Console& operator=(const Utf8Console&) = delete;

 private:
  UINT before_;
};

}  // namespace

extern "C" int bimetal_lite_main(int /*count*/, char** /*words*/) {
  const Utf8Console console;
  return bimetal::cli::run_lite(bimetal::launch::own_command_line());
}
