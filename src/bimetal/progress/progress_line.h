#pragma once
// How far training is, in one line for people.

#include <string>

#include "bimetal/progress/observer.h"

namespace bimetal::progress {

/// "step 340/590  0:42 left  loss 0.4120  efficiency 97 %  8412 images/s (6730 + 1682)  shares …".
/// What matters first: a terminal of 80 columns cuts the rest.
std::string progress_line(const Progress& progress);

/// The same for a run that a clock will end: "efficiency 97 %  8412 images/s …".
std::string rate_line(const Progress& progress);

}  // namespace bimetal::progress
