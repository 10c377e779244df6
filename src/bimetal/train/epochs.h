#pragma once
// A run among members that come, leave and are lost: one epoch after the other. docs/elastic.md
// says what survives, and what does not. Private to this folder.

#include "bimetal/comm/group.h"
#include "bimetal/progress/report.h"
#include "bimetal/train/run.h"

namespace bimetal::train {

/// Trains `run` until it is done. `group`: that of the first epoch, and from then on of the present
/// one. For a rank that comes later (TrainerOptions::doors) it first has this rank alone. Without
/// members it is the only epoch. Collective. Errors: those of run_training(). A report that is
/// interrupted and has no workers is that of a rank which has left.
progress::Report train_epochs(Run& run, comm::Group& group);

}  // namespace bimetal::train
