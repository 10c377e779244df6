#pragma once
// What a job has left behind and where, as its leading rank tells `bimetal launch` at its end: by
// the board on the rank's machine (rank_places.h).

#include <string_view>

namespace bimetal::launch {

/// Of that board.
inline constexpr const char* kLastWordsKey = "launch/last-words";

/// `where`: "report /home/me/run.json, checkpoint /home/me/runs/first/step-00000470"; paths are
/// absolute. Does nothing where no launcher listens: nobody's job ends worse for it.
void leave_last_words(std::string_view where) noexcept;

}  // namespace bimetal::launch
