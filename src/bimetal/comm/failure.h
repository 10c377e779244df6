#pragma once
// Why a group or an operation ended, as plain data. An Error is built from it anew wherever it is
// thrown, so that no two threads ever share an exception object.

#include <exception>
#include <optional>
#include <string>

#include "bimetal/base/error.h"

namespace bimetal::comm {

struct Failure {
  ErrorCode code = ErrorCode::Internal;
  std::string message;
  std::optional<int> rank;  ///< world rank to blame, where there is one

  Error to_error() const { return Error(code, message, rank); }
  std::exception_ptr to_exception() const { return std::make_exception_ptr(to_error()); }

  friend bool operator==(const Failure&, const Failure&) = default;
};

}  // namespace bimetal::comm
