#include "bimetal/cli/error_text.h"

#include <fmt/format.h>

#include <new>
#include <string>

#include "bimetal/cli/terminal.h"

namespace bimetal::cli {

Error as_error(const std::exception& exception) {
  if (const auto* error = dynamic_cast<const Error*>(&exception)) return *error;
  if (dynamic_cast<const std::bad_alloc*>(&exception) != nullptr) {
    return {ErrorCode::OutOfMemory, "this process has no memory left"};
  }
  const std::string text = exception.what();
  return {ErrorCode::Internal, text.substr(0, text.find('\n'))};
}

void print_error(const Error& error) {
  print_to_errors(fmt::format("bimetal: error: {}", error.what()));
}

}  // namespace bimetal::cli
