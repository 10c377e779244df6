#pragma once
// One rank's share of a profile, as it travels to rank 0.

#include <array>
#include <span>
#include <string>
#include <vector>

#include "bimetal/comm/exchange.h"
#include "bimetal/train/profile/operations.h"
#include "bimetal/train/profile/profile.h"
#include "bimetal/train/profile/rank_trace.h"

namespace bimetal::train {

/// In the order in which a step goes through them; "other" is what no mark covers, and the exchange
/// runs beside them all.
inline constexpr std::array<const char*, 8> kPhases = {"data", "forward", "backward", "bubble",
                                                       "wait", "update",  "other",    "exchange"};

struct RankProfile {
  double seconds = 0;  ///< of its steps
  std::array<double, kPhases.size()> phases{};
  std::vector<Operation> operations = {};
  std::string trace = {};  ///< trace_events()
};

/// From what happened on a rank in steps of `seconds` altogether.
RankProfile summarize(const RankTrace& rank, double seconds);

comm::Bytes encode(const RankProfile& profile);
/// Error(CorruptData) for anything else than encode() gives.
RankProfile decode(std::span<const std::byte> bytes);

/// Adds a rank's figures to the profile's; its operations are in no order.
void add_to(Profile& profile, const RankProfile& rank);

}  // namespace bimetal::train
