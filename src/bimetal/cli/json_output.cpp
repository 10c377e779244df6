#include "bimetal/cli/json_output.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>

#include "bimetal/base/error.h"
#include "bimetal/cli/terminal.h"
#include "bimetal/launch/local/status_pipe.h"

namespace bimetal::cli {
namespace {

constexpr const char* kVariable = "BIMETAL_JSON_FD";  // of the ranks that this process starts
constexpr int kFree = 50;                             // those before may have another use in a rank

std::FILE*& kept() {
  static std::FILE* output = nullptr;
  return output;
}

/// The former standard output, for this process and, if no other has kept it before, its ranks.
int take_output() {
  static auto inherited = launch::inherited_descriptor(kVariable);
  if (inherited) return inherited.number();
  const int number = ::fcntl(STDOUT_FILENO, F_DUPFD, kFree);
  if (number >= 0) ::setenv(kVariable, std::to_string(number).c_str(), /*overwrite=*/1);
  return number;
}

}  // namespace

void keep_output_for_json() {
  if (kept() != nullptr) return;
  std::fflush(stdout);
  const int number = take_output();
  kept() = number < 0 ? nullptr : ::fdopen(number, "w");
  if (kept() == nullptr || ::dup2(STDERR_FILENO, STDOUT_FILENO) < 0) {
    throw system_error("cannot keep standard output for JSON", errno);
  }
}

void print_json_text(std::string_view text) {
  std::FILE* output = kept() ? kept() : stdout;
  write_to(output, text);
  if (!text.ends_with('\n')) write_to(output, "\n");
}

void print_json(const nlohmann::ordered_json& json) {
  print_json_text(json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
}

}  // namespace bimetal::cli
