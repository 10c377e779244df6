#include "bimetal/serving/answering.h"

#include <fmt/format.h>

#include <new>
#include <string>

namespace bimetal::serving {

Error as_served_error(const std::exception& failure) {
  if (const auto* error = dynamic_cast<const Error*>(&failure)) return *error;
  const bool memory = dynamic_cast<const std::bad_alloc*>(&failure) != nullptr;
  const std::string text = failure.what();
  return Error(
      memory ? ErrorCode::OutOfMemory : ErrorCode::Internal,
      fmt::format("the server could not compute this: {}", text.substr(0, text.find('\n'))));
}

}  // namespace bimetal::serving
