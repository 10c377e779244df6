#pragma once
// What went wrong in a call, as a value that tests can compare.

#include <gtest/gtest.h>

#include <optional>

#include "bimetal/base/error.h"

namespace bimetal::balance::test {

template <typename Call>
std::optional<Error> error_of(Call call) {
  try {
    call();
  } catch (const Error& error) {
    return error;
  }
  return std::nullopt;
}

/// Internal, which no test expects, stands for no error.
template <typename Call>
ErrorCode code_of(Call call) {
  const auto error = error_of(call);
  return error ? error->code() : ErrorCode::Internal;
}

}  // namespace bimetal::balance::test
