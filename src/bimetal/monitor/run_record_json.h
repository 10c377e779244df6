#pragma once
// Parts of a run's record that the page has, too.

#include <nlohmann/json_fwd.hpp>

#include "bimetal/monitor/run_record.h"

namespace bimetal::monitor {

nlohmann::ordered_json json_of(const EvaluatedAt& at);

/// In one line; a name in no known encoding is no reason to lose it.
std::string text_of(const nlohmann::ordered_json& json);

}  // namespace bimetal::monitor
