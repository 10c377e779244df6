#pragma once
// The one table of the job file's keys: where each lies, what it accepts, and which member of
// JobConfig holds it (whose initial value is the default). Private to job.cpp.

#include <toml++/toml.h>

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bimetal/job/job_config.h"

namespace bimetal::job {

/// How one type of value gets from TOML into a member and back.
struct Binding {
  /// Stores the value, or says why it cannot: "expected a whole number, found a string".
  std::function<std::optional<std::string>(const toml::node&)> read;
  std::function<std::string()> write;  ///< the member's value in TOML syntax
  bool is_text = false;                ///< a bare word after --set is meant literally
};

/// Whether all ranks of a job must have the same value. They must where it decides which
/// collectives a rank calls, and with what, or how parameters change; where the data lies, which
/// devices there are and how many checkpoints are kept may differ.
enum class Ranks : bool { MayDiffer, Alike };

struct JobKey {
  std::string_view section, name;
  Ranks ranks;
  Binding value;
};

/// All keys, bound to the members of `job`, which must outlive them.
std::vector<JobKey> job_keys(JobConfig& job);

/// A word in the place of a whole section, as in mesh = "auto", and what it says of its keys.
struct SectionWord {
  std::string_view section, word;
  std::vector<std::pair<std::string_view, std::string_view>> values;  ///< key, word
};
const std::vector<SectionWord>& section_words();

/// `text` as a TOML string, in quotes.
std::string toml_string(std::string_view text);

/// "a whole number", "a string", … for messages.
std::string_view type_name(const toml::node& node);

}  // namespace bimetal::job
