#pragma once
// The figures of a run that has ended, from its report.

#include <filesystem>
#include <string>

namespace bimetal::cli {

struct RunFigures {
  double samples_per_s = 0;
  double test_accuracy = 0;  ///< 0…1; NaN where it was not evaluated
  int fastest_rank = -1;     ///< of several workers: the fastest alone, by the run's own figures
  std::string fastest_time = {};  ///< where its time went, in words
};

/// Error(System) if the report can't be read, Error(CorruptData) if it is none.
RunFigures read_run_figures(const std::filesystem::path& report);

}  // namespace bimetal::cli
