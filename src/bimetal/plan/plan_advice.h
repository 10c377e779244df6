#pragma once
// A plan in plain words.

#include <string>

#include "bimetal/plan/plan.h"

namespace bimetal::plan {

/// Which way to run the job, why, and from where on another one would be better: a few sentences,
/// each on a line of its own.
std::string advice(const PlanInput& input, const Plan& plan);

/// "830 µs", "12.3 ms", "1.25 s".
std::string seconds_text(double seconds);

/// "12.3 GFLOP", "1.2 TFLOP".
std::string operations_text(double operations);

/// As network links are sold: "940 Mbit/s", "25.0 Gbit/s".
std::string link_text(double bytes_per_s);

}  // namespace bimetal::plan
