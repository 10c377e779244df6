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

comm::Failure failure_of(const std::exception_ptr& thrown) {
  try {
    std::rethrow_exception(thrown);
  } catch (const Error& error) {
    return {error.code(), error.what(), error.rank()};
  } catch (const std::exception& error) {
    return {ErrorCode::Internal, error.what(), std::nullopt};
  }
}

}  // namespace bimetal::c10d
