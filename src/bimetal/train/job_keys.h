#pragma once
// The one table of the job file's keys: where each lies, what it accepts, and which member of Job
// holds it (whose initial value is the default). Private to job.cpp.

#include <toml++/toml.h>

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "bimetal/train/job.h"

namespace bimetal::train {

/// How one type of value gets from TOML into a member and back.
struct Binding {
  /// Stores the value, or says why it cannot: "expected a whole number, found a string".
  std::function<std::optional<std::string>(const toml::node&)> read;
  std::function<std::string()> write;  ///< the member's value in TOML syntax
  bool is_text = false;                ///< a bare word after --set is meant literally
};

struct JobKey {
  std::string_view section, name;
  Binding value;
};

/// All keys, bound to the members of `job`, which must outlive them.
std::vector<JobKey> job_keys(Job& job);

/// `text` as a TOML string, in quotes.
std::string toml_string(std::string_view text);

/// "a whole number", "a string", … for messages.
std::string_view type_name(const toml::node& node);

}  // namespace bimetal::train
