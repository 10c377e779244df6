#pragma once
// A change of members in reports, and as ranks tell newcomers of it.

#include <nlohmann/json_fwd.hpp>

#include "bimetal/progress/members_change.h"

namespace bimetal::progress {

void to_json(nlohmann::ordered_json& json, const MembersChange& change);
void from_json(const nlohmann::ordered_json& json, MembersChange& change);

}  // namespace bimetal::progress
