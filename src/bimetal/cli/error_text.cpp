#include "bimetal/cli/error_text.h"

#include <fmt/format.h>

#include <string>

#include "bimetal/base/to_error.h"
#include "bimetal/cli/terminal.h"

namespace bimetal::cli {

Error as_error(const std::exception& exception) {
  const auto error = to_error(exception);
  if (error.code() != ErrorCode::Internal || dynamic_cast<const Error*>(&exception)) return error;
  const std::string text = error.what();
  return {ErrorCode::Internal, text.substr(0, text.find('\n'))};
}

void print_error(const Error& error) {
  print_to_errors(fmt::format("bimetal: error: {}", error.what()));
}

}  // namespace bimetal::cli
