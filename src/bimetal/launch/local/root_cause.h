#pragma once
// Which of several failures to tell the user about. One rank's end makes all others fail as well;
// the first cause is the one that helps. Pure.

#include <optional>
#include <span>
#include <string>

#include "bimetal/base/error.h"
#include "bimetal/launch/local/process.h"

namespace bimetal::launch {

/// How one local rank ended.
struct RankOutcome {
  int rank = 0;
  std::string name;  ///< what it runs on: "cpu:threads=1"
  int pid = 0;
  ProcessExit exit;
  bool killed_by_us = false;   ///< the launcher had to end it: no cause of its own
  std::optional<Error> error;  ///< what it reported before it ended
};

/// What its failure is told as: names the rank and what it ran on.
Error error_of(const RankOutcome& outcome, int world_size);

struct RootCause {
  Error error;
  /// Whether it happened here. A peer lost, a deadline missed or an operation aborted is only what
  /// a cause elsewhere looks like from here.
  bool first_hand = true;
};

/// What stands for the whole job, or nothing if every rank ended well. Preferred are, in this
/// order: a rank killed by a signal or ended without a word; an error of its own; a deadline that
/// passed; a lost peer; an operation that another rank aborted. The message names the rank and what
/// it ran on, unless all ranks report the same.
/// `interrupted`: the user asked for the end, so that ends by that signal are no failures.
std::optional<RootCause> root_cause(std::span<const RankOutcome> outcomes, int world_size,
                                    bool interrupted);

}  // namespace bimetal::launch
