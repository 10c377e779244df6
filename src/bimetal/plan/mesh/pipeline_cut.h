#pragma once
// Where a pipeline's model may be cut, in the form of schedule/cut.h.

#include <optional>
#include <vector>

#include "bimetal/parallel/schedule/cut.h"
#include "bimetal/plan/mesh/layouts.h"
#include "bimetal/plan/mesh/mesh_plan.h"
#include "bimetal/plan/mesh/stages_choice.h"

namespace bimetal::plan {

/// Of a choice whose stages have devices and samples, but no units yet: what each unit takes on
/// each stage, what lies between these, and what fits into their devices. What it is made of must
/// outlive it.
parallel::schedule::CutProblem cut_problem(const MeshProblem& on, const MeshChoice& choice);

// The best pipeline of given stages for a job, where the job leaves something open: schedules,
// numbers of micro-batches, weights of parts.

/// Of more devices not every division into stages is looked at.
inline constexpr int kDividedFreely = 8;

/// Whether `a` is to be taken though `b` comes first: it fits and the other does not, or lacks
/// less, or is clearly faster.
bool beats(const MeshChoice& a, const MeshChoice& b);

/// With its step simulated. Nothing if none can be.
std::optional<MeshChoice> pipeline_of(const MeshProblem& on, const StagesWish& wish,
                                      const Layout& layout);

/// The step at a glance: by the formula, in one schedule, in as many micro-batches as a run takes
/// by itself and in four times as many, since short ones suit layouts of unlike stages.
std::optional<MeshChoice> at_a_glance(const MeshProblem& on, StagesWish wish, const Layout& layout);

/// Of the parts of groups of as many devices each, in the order in which they are to be tried;
/// none: the wish has weights for another number of them.
std::vector<std::vector<double>> weights_to_try(const MeshProblem& on, const StagesWish& wish,
                                                const Groups& groups);

}  // namespace bimetal::plan
