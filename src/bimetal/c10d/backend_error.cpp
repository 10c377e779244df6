#include "bimetal/c10d/backend_error.h"

#include <fmt/format.h>

#include <string>

namespace bimetal::c10d {
namespace {

std::string text_of(const Error& error) {
  const std::string rank = error.rank() ? fmt::format(", rank {}", *error.rank()) : "";
  return fmt::format("bimetal: {} [{}{}]", error.what(), to_string(error.code()), rank);
}

}  // namespace

BackendError::BackendError(const bimetal::Error& error)
    : c10::DistBackendError(text_of(error), nullptr), code_(error.code()), rank_(error.rank()) {}

}  // namespace bimetal::c10d
