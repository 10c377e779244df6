#pragma once
// Shared memory between two processes that have nothing else in common: one holds a segment, the
// other is told where it is.

#include <string_view>

namespace bimetal::testing {

/// Makes a segment, prints where it is, sleeps on its bell, prints by how many rings it was woken
/// and what the other has written, makes the segment impossible to find, and holds it until its
/// standard input ends. An exit status.
int hold_memory();

/// Opens the segment at `where`, as hold_memory() has printed it, writes in it, rings its bell and
/// prints "found"; or prints why there is none. Before that, that another nonce or size is refused.
int find_memory(std::string_view where);

}  // namespace bimetal::testing
