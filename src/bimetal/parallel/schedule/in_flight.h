#pragma once
// Which activations a list of actions keeps at a time.

#include <span>
#include <vector>

#include "bimetal/parallel/schedule/schedule.h"

namespace bimetal::parallel::schedule {

/// Of each of `chunks` chunks, how many micro-batches are between forward and the end of backward
/// where that is most: every moment of the list at which no other has as many or more of each. With
/// one chunk that is one number; with several it depends on their sizes which moment is fullest.
std::vector<std::vector<int>> fullest_moments(std::span<const Action> actions, int chunks);

}  // namespace bimetal::parallel::schedule
