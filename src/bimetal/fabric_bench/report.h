#pragma once
// What rank 0 prints: a table that grows with each size, or JSON at the end.

#include <cstdio>
#include <string>
#include <vector>

#include "bimetal/fabric_bench/bench_options.h"
#include "bimetal/fabric_bench/measure.h"

namespace bimetal::fabric_bench {

class Report {
 public:
  Report(const BenchOptions& options, int ranks);

  /// Says on a terminal's standard error what is being measured.
  void announce(std::size_t bytes, std::size_t number, std::size_t of);

  void add(const Measurement& measurement);

  /// Ends the table, or prints the JSON. Error(System) if nobody takes it.
  void finish();

 private:
  void write(const std::string& text);
  void clear_announcement();

  const BenchOptions& options_;
  const int ranks_;
  const bool announces_;
  std::vector<Measurement> measurements_;
};

/// "256 B", "64 KiB", "1.5 MiB".
std::string size_text(std::size_t bytes);

}  // namespace bimetal::fabric_bench
