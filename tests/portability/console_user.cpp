// console_user PROGRAM ARGUMENTS…: acts as a user before a console of Windows. It runs the program
// in a console of its own, presses Ctrl-C there for each line of standard input, and ends as the
// program does: with its status, or 128 + N where signal N stands for its end.

#include <fmt/format.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "bimetal/base/error.h"
#include "bimetal/launch/local/process.h"
#include "bimetal/launch/system/environment.h"

int main() {
  using namespace bimetal::launch;
  auto words = own_command_line();
  words.erase(words.begin());
  try {
    auto program = Process::start({words, {}, {}});
    std::atomic<int> presses{0};
    std::thread([&presses] {
      for (int key = 0; (key = std::getchar()) != EOF;) presses += key == '\n';
    }).detach();
    for (int pressed = 0;;) {
      if (const auto exit = program.poll()) {
        std::_Exit(exit->signal != 0 ? 128 + exit->signal : exit->status);
      }
      for (; pressed < presses; ++pressed) program.send(SIGINT);
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
  } catch (const bimetal::Error& error) {
    fmt::print(stderr, "console_user: {}\n", error.what());
    return 125;
  }
}
