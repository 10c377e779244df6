#pragma once
// A change of the members of an elastic job, and its cost: docs/elastic.md.

#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

namespace bimetal::progress {

/// Workers were lost, have left or come, and those who are there go on.
struct MembersChange {
  std::int64_t step = 0;                                     ///< the last one before
  std::vector<std::string> lost = {}, left = {}, came = {};  ///< "cuda:0 on pc (process 4711)"
  std::string cause = {};                                    ///< of a loss
  int workers = 0;                                           ///< that go on
  double seconds = 0;  ///< from the last epoch's end until the state is the same on all
};

/// For people, a line each. (Here and without fmt, since what watches a job, other people's
/// programs too, uses headers of progress/ alone.)
inline std::vector<std::string> lines_of(const MembersChange& change) {
  std::vector<std::string> lines;
  const auto add = [&](const std::string& what, const std::vector<std::string>& who,
                       const std::string& why = {}) {
    std::string all;
    for (const auto& one : who) all += (all.empty() ? "" : ", ") + one;
    if (!all.empty()) lines.push_back(what + ": " + all + why);
  };
  add("lost", change.lost, change.cause.empty() ? "" : " (" + change.cause + ")");
  add("left", change.left);
  add("joined", change.came);
  char seconds[32];
  std::snprintf(seconds, sizeof seconds, "%.2f", change.seconds);
  lines.push_back(std::to_string(change.workers) +
                  (change.workers == 1 ? " worker goes" : " workers go") + " on from step " +
                  std::to_string(change.step) + ", after " + seconds + " s");
  return lines;
}

}  // namespace bimetal::progress
