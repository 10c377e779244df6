#pragma once
// What a change of the members of an elastic job was, and what it cost: docs/elastic.md.

#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <vector>

#include "bimetal/base/quantity.h"

namespace bimetal::progress {

/// Workers were lost, have left or come, and those who are there go on.
struct MembersChange {
  std::int64_t step = 0;                                     ///< the last one before
  std::vector<std::string> lost = {}, left = {}, came = {};  ///< "cuda:0 on pc (process 4711)"
  std::string cause = {};                                    ///< of a loss
  int workers = 0;                                           ///< that go on
  double seconds = 0;  ///< from the last epoch's end until the state is the same on all
};

/// For people, a line each. (Here, since what watches a job uses headers of progress/ alone.)
inline std::vector<std::string> lines_of(const MembersChange& change) {
  std::vector<std::string> lines;
  const auto add = [&](const char* what, const std::vector<std::string>& who,
                       const std::string& why = {}) {
    std::string all;
    for (const auto& one : who) all += (all.empty() ? "" : ", ") + one;
    if (!all.empty()) lines.push_back(fmt::format("{}: {}{}", what, all, why));
  };
  add("lost", change.lost, change.cause.empty() ? "" : fmt::format(" ({})", change.cause));
  add("left", change.left);
  add("joined", change.came);
  lines.push_back(fmt::format("{} on from step {}, after {:.2f} s",
                              counted(change.workers, "worker goes", "workers go"), change.step,
                              change.seconds));
  return lines;
}

}  // namespace bimetal::progress
