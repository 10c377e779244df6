#pragma once
// The error of a call, as tests compare it.

#include <gtest/gtest.h>

#include <optional>
#include <source_location>
#include <string>
#include <vector>

#include "bimetal/base/error.h"

namespace bimetal {

/// The exception of `call`, if it is an Error.
template <typename Call>
std::optional<Error> error_of(Call&& call) {
  try {
    call();
  } catch (const Error& error) {
    return error;
  }
  return std::nullopt;
}

/// Internal, which no test expects, stands for no error.
template <typename Call>
ErrorCode code_of(Call&& call) {
  const auto error = error_of(call);
  return error ? error->code() : ErrorCode::Internal;
}

/// The text of the Error that `call` may throw, which has this code; of none it is empty.
template <typename Call>
std::string text_of(ErrorCode code, Call&& call) {
  const auto error = error_of(call);
  if (error) {
    EXPECT_EQ(error->code(), code) << error->what();
  }
  return error ? error->what() : "";
}

/// That `call` throws an Error of this code, whose text has each of `parts`: which error.
template <typename Call>
Error expect_error(ErrorCode code, const std::vector<std::string>& parts, Call&& call,
                   std::source_location where = std::source_location::current()) {
  const ::testing::ScopedTrace trace(where.file_name(), static_cast<int>(where.line()),
                                     "an error is expected");
  const auto error = error_of(call);
  if (!error) {
    ADD_FAILURE() << "there was none";
    return {ErrorCode::Internal, "no error"};
  }
  const std::string text = error->what();
  EXPECT_EQ(error->code(), code) << text;
  for (const auto& part : parts) EXPECT_NE(text.find(part), text.npos) << part << "\n" << text;
  return *error;
}

}  // namespace bimetal
