#pragma once
// What a change of the members of an elastic job was, and what it cost: docs/elastic.md.

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
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

/// For people, a line each.
std::vector<std::string> lines_of(const MembersChange& change);

void to_json(nlohmann::ordered_json& json, const MembersChange& change);
void from_json(const nlohmann::ordered_json& json, MembersChange& change);

}  // namespace bimetal::progress
