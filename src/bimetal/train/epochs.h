#pragma once
// A run among members that come, leave and are lost: one epoch after the other. docs/elastic.md
// says what survives, and what does not. Private to this folder.

#include <string>

#include "bimetal/base/error.h"
#include "bimetal/comm/group.h"
#include "bimetal/progress/report.h"
#include "bimetal/train/run.h"

namespace bimetal::train {

/// Trains `run` until it is done. `group`: that of the first epoch, and from then on of the present
/// one. For a rank that comes later (TrainerOptions::doors) it first has this rank alone. Without
/// members it is the only epoch. Collective. Errors: those of run_training(). A report that is
/// interrupted and has no workers is that of a rank which has left.
progress::Report train_epochs(Run& run, comm::Group& group);

// Brings the ranks of a new epoch to the same step: a rank that is behind, or new, takes the run
// from the one that is furthest. Private to this folder and its tests.

/// Whoever had the model, or a part of it that is saved nowhere, is gone: no other members change
/// that.
class NothingToGoOnWith : public Error {
 public:
  explicit NothingToGoOnWith(const std::string& why) : Error(ErrorCode::PeerLost, why) {}
};

/// Measures this rank's work in `run` beside nobody, and makes its model and optimizer, so that
/// ranks in training need not wait for that. `alone`: a group of this process alone.
void prepare(Run& run, const comm::Group& alone);

/// Ranks that have the whole model each: parameters, buffers, the optimizer's state and the
/// sampler's place become those of the rank with most steps. A model in shards or parts goes on
/// from the checkpoint that its ranks have saved, or, with `shards_lost` on any rank, from the last
/// one that rank 0 finds. What has been written down of the run goes to newcomers, too. Nothing is
/// sent where all have made as many steps, nor where nobody has begun, since one was lost before:
/// all begin as rank 0 does. Collective. All ranks throw NothingToGoOnWith where there are
/// newcomers alone, or nothing has been saved.
void even_out(Run& run, comm::Group group, bool shards_lost = false);

}  // namespace bimetal::train
