#pragma once
// Whether standard output and standard error go to a terminal or to a file.

namespace bimetal {

/// Whether the descriptor is a terminal that understands escape codes, as far as its kind (TERM)
/// tells.
bool is_capable_terminal(int descriptor);

/// Whether a line there may be rewritten in place, and coloured: on a terminal that somebody looks
/// at. Not where NO_COLOR is set, whatever to; and not below mpirun, which gives ranks a
/// pseudo-terminal whose lines it passes on, often into a file.
bool may_rewrite(int descriptor);

}  // namespace bimetal
