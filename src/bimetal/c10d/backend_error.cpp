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

std::exception_ptr as_backend_error(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const Error& ours) {
    return std::make_exception_ptr(BackendError(ours));
  } catch (...) {
    return std::current_exception();
  }
}

}  // namespace bimetal::c10d
