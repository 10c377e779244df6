// launched_rank MODE: a command that the tests launch as ranks on Windows.
//
// say WORDS…: prints what it was given: its place, the words, its folder, LAUNCHED_RANK_SAYS.
// wait: until it is ended. grandchild: the same, with a process of its own.
// orderly: the same, but ends with 0 after a Ctrl-C, as Python programs do after their clean-up.
// stubborn: the same, but heeds no Ctrl-C.
// crash: rank 1 reads where there is nothing, the others wait.
// end PID: ends another process as the Task Manager does.
// lines: line ends of every kind, none in the end, and an error.

#include <fcntl.h>
#include <io.h>
#include <windows.h>

#include <atomic>
#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

#include "bimetal/base/unicode/utf8.h"
#include "bimetal/launch/local/process.h"
#include "bimetal/launch/system/environment.h"

namespace {

using bimetal::launch::environment_variable;

std::atomic<bool> heeds_ctrl_c{true};

BOOL WINAPI on_ctrl_c(DWORD) {
  if (heeds_ctrl_c) {
    std::printf("stops in an orderly way\n");
    std::fflush(stdout);
    ExitProcess(0);
  }
  return TRUE;
}

/// A minute, which no test takes.
int wait(const std::string& rank) {
  std::printf("rank %s waits as %lu\n", rank.c_str(), GetCurrentProcessId());
  std::fflush(stdout);
  Sleep(60'000);
  return 9;
}

int say(const std::string& rank, const std::vector<std::string>& words) {
  const auto text = [](const char* name) { return environment_variable(name).value_or("nothing"); };
  std::printf("rank %s of %s, %s on its host, meets at %s\n", rank.c_str(),
              text("WORLD_SIZE").c_str(), text("LOCAL_RANK").c_str(), text("MASTER_ADDR").c_str());
  for (std::size_t i = 2; i < words.size(); ++i) std::printf("word <%s>\n", words[i].c_str());
  std::printf("folder <%s>\n", bimetal::utf8_of_path(std::filesystem::current_path()).c_str());
  std::printf("variable <%s>\n", text("LAUNCHED_RANK_SAYS").c_str());
  std::printf("token of %zu characters\n", text("BIMETAL_TOKEN").size());
  return 0;
}

int crash(const std::string& rank) {
  if (rank != "1") return wait(rank);
  const volatile int* const nothing = nullptr;
  return *nothing;
}

int end(const std::string& pid) {
  const HANDLE process = OpenProcess(PROCESS_TERMINATE, FALSE, std::stoul(pid));
  return TerminateProcess(process, 1) ? 0 : 1;
}

int lines() {
  std::fputs("unix\ndos\r\nbar 1\rbar 2\rbar 3\r\nno end", stdout);
  std::fputs("an error\r\n", stderr);
  return 0;
}

}  // namespace

int main() {
  const auto words = bimetal::launch::own_command_line();
  const auto rank = environment_variable("RANK").value_or("alone");
  const std::string mode = words.size() > 1 ? words[1] : "";
  // Line ends as they are written here.
  _setmode(1, _O_BINARY);
  _setmode(2, _O_BINARY);
  if (mode == "say") return say(rank, words);
  if (mode == "crash") return crash(rank);
  if (mode == "end") return end(words.at(2));
  if (mode == "lines") return lines();
  if (mode == "orderly" || mode == "stubborn") {
    heeds_ctrl_c = mode == "orderly";
    SetConsoleCtrlHandler(on_ctrl_c, TRUE);
  }
  if (mode == "grandchild") {
    STARTUPINFOW how{};
    how.cb = sizeof(how);
    PROCESS_INFORMATION child;
    auto line = bimetal::launch::command_line_of({words[0], "wait"});
    CreateProcessW(bimetal::launch::own_program().c_str(), line.data(), nullptr, nullptr, TRUE, 0,
                   nullptr, nullptr, &how, &child);
  }
  return wait(rank);
}
