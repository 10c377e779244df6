#pragma once
// Job files as tests write them.

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "bimetal/base/error.h"
#include "bimetal/job/job_config.h"

namespace bimetal::job {

inline JobConfig parse(const std::string& text, const std::vector<std::string>& overrides = {}) {
  return parse_job(text, "job.toml", overrides);
}

/// The message of the InvalidArgument that `text` and `overrides` must lead to.
inline std::string error_of(const std::string& text,
                            const std::vector<std::string>& overrides = {}) {
  try {
    parse(text, overrides);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::InvalidArgument) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "accepted: " << text << (overrides.empty() ? "" : overrides.front());
  return "";
}

}  // namespace bimetal::job
