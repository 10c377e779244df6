#pragma once
// Job files as tests write them.

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "bimetal/base/error.h"
#include "bimetal/job/job_config.h"
#include "support/errors.h"

namespace bimetal::job {

inline JobConfig parse(const std::string& text, const std::vector<std::string>& overrides = {}) {
  return parse_job(text, "job.toml", overrides);
}

/// The message of the InvalidArgument that `text` and `overrides` must lead to.
inline std::string error_of(const std::string& text,
                            const std::vector<std::string>& overrides = {}) {
  return expect_error(ErrorCode::InvalidArgument, {}, [&] { parse(text, overrides); }).what();
}

}  // namespace bimetal::job
