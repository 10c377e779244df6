#pragma once
// How a finished job did beside its fastest device by itself, and where that device's time went.

#include <optional>
#include <string>

#include "bimetal/progress/report.h"

namespace bimetal::progress {

/// What "alone" stands for in a run's own figures.
inline constexpr const char* kAloneFrom =
    "each worker's own compute time in this run, beside the others; not a run by itself";

struct FastestAlone {
  int rank = 0;
  double samples_per_s_alone = 0;
  double job_relative = 0;  ///< the job's rate ÷ that; below 1: alone it would have been faster
  std::string time = {};    ///< where its time went, in words
};

/// Of the worker that is fastest alone; none for a job of one worker, or one that has no figures.
std::optional<FastestAlone> fastest_alone(const Report& report);

}  // namespace bimetal::progress
