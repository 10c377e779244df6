#pragma once
// The one table of the job file's keys: where each lies, what it accepts, and which member of
// JobConfig holds it (whose initial value is the default).
//
// The kinds of values that a job file's keys take: how each is read from TOML, what it refuses, and
// how it is written again.
//
// Ranks may have been started by hand, each with a job file of its own. Settings that must be equal
// for them to work together are compared before anything else. Their data follows in shared_data.h.

#include <toml++/toml.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bimetal/comm/group.h"
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

/// A word in the place of a whole section, as in mesh = "auto", and its meaning for the section's
/// keys.
struct SectionWord {
  std::string_view section, word;
  std::vector<std::pair<std::string_view, std::string_view>> values;  ///< key, word
};
const std::vector<SectionWord>& section_words();

/// `text` as a TOML string, in quotes.
std::string toml_string(std::string_view text);

/// "a whole number", "a string", … for messages.
std::string_view type_name(const toml::node& node);

inline constexpr double kMaxNumber = std::numeric_limits<double>::max();

/// Which numbers a key accepts: from `min` (left out if `above_min`) to `max` (if `below_max`).
struct Range {
  double min = -kMaxNumber;
  double max = kMaxNumber;
  bool above_min = false;
  bool below_max = false;

  bool contains(double value) const {  // false for NaN
    return (above_min ? value > min : value >= min) && (below_max ? value < max : value <= max);
  }
  std::string text() const;  ///< " of at least 0 and less than 1"
};

inline constexpr Range kPositive{.min = 0, .above_min = true};
inline constexpr Range kNotNegative{.min = 0};
inline constexpr Range kFraction{.min = 0, .max = 1, .below_max = true};
inline constexpr Range kRatio{.min = 0, .max = 1};
inline constexpr Range kShare{.min = 0, .max = 1, .above_min = true};
inline constexpr Range kMegabytes{.min = 0, .max = 1e6, .above_min = true};
/// Up to eleven days: far from the limit of a clock's nanoseconds.
inline constexpr Range kSeconds{.min = 0, .max = 1e6, .above_min = true};
inline constexpr Range kSecondsOrNone{.min = 0, .max = 1e6};

/// Each binds a member, which must outlive it.

Binding whole(std::int64_t& to, std::int64_t min,
              std::int64_t max = std::numeric_limits<std::int64_t>::max());
Binding whole(std::uint64_t& to, std::int64_t min,
              std::int64_t max = std::numeric_limits<std::int64_t>::max());
/// Whole numbers are numbers, too: learning_rate = 1 is fine.
Binding number(double& to, Range range);
/// An array of such, which may be empty.
Binding numbers(std::vector<double>& to, Range range);
Binding flag(bool& to);
Binding text(std::string& to);
Binding one_of(std::string& to, std::vector<std::string> choices);
/// An array of some of `names`, each once; or `word`, which is kept as the only one.
Binding names_or_word(std::vector<std::string>& to, std::vector<std::string> names,
                      std::string word);
/// "ADDR:PORT", or empty.
Binding endpoint(std::string& to);
/// An array of what parse_worker_spec() reads.
Binding worker_specs(std::vector<std::string>& to);
/// balance = "auto" | "equal" | [3, 1]
Binding balance_policy(ParallelConfig& to);
/// shards = "memory" | "speed" | "equal" | [3, 1]
Binding shard_weights(ZeroConfig& to);
/// cuts = [2, 5]: whole numbers above 0, each larger than the one before; may be empty.
Binding rising_numbers(std::vector<std::int64_t>& to);
/// tensor_weights = "equal" | "speed" | [2, 1]; [] is "equal".
Binding tensor_parts(MeshConfig& to);
/// recompute = "none" | "all" | "sqrt" | "auto" | 4
Binding word_or_count(std::string& to, std::vector<std::string> words);
/// stages = "auto" | 2; "auto" is kept as `automatic`; numbers are `least` or more.
Binding count_or_auto(std::int64_t& to, std::int64_t automatic, std::int64_t least = 1);
/// replicas = "auto" | 2 | [1, 2]: one number, 0 ("auto") included, or several of at least 1.
Binding mesh_replicas(MeshConfig& to);
/// tensor = "auto" | 2 | [1, 2]: the same, of at least 1.
Binding mesh_tensor(MeshConfig& to);
/// count = 2 | [3, 1]
Binding server_weights(ServersConfig& to);

// Settings that [mesh] may leave open.

/// MeshConfig::stages and tensor where the job file says "auto": measured and chosen before
/// training.
inline constexpr std::int64_t kAutoStages = 0;
inline constexpr std::int64_t kAutoTensor = 0;
/// MeshConfig::replicas: as many as there are workers for.
inline constexpr std::int64_t kAutoReplicas = 0;

/// Each number of a mesh is at most that.
inline constexpr std::int64_t kMostRanks = 1 << 20;

/// The value of MeshConfig::schedule for the fastest one. Job files that leave stages or tensor
/// open and name no schedule have it.
inline constexpr const char* kAutoSchedule = "auto";

/// Whether either is left open.
inline bool is_open(const MeshConfig& mesh) {
  return mesh.stages == kAutoStages || mesh.tensor == kAutoTensor;
}

/// Processes that keep parameters, copies included.
inline int server_processes(const ServersConfig& servers) {
  return static_cast<int>(servers.weights.size()) * static_cast<int>(servers.replicas);
}

/// Names of settings and their values.
using JobFacts = std::vector<std::pair<std::string, std::string>>;

/// The facts that must be the same in all processes of a job.
JobFacts facts_of(const JobConfig& job);

/// Error(CallMismatch), on every rank, names the first key that differs from rank 0's, both values
/// and the rank. Collective.
void require_same_job(comm::Group group, const JobConfig& job, std::chrono::milliseconds timeout);

/// The same for further facts of the ranks: texts like "training data = 500 samples". All ranks
/// have the same number of texts.
void require_same_facts(comm::Group group, const std::vector<std::string>& facts,
                        std::chrono::milliseconds timeout);

}  // namespace bimetal::job
