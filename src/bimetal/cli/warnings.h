#pragma once
// What the library warns of, shown to whoever runs a program.

namespace bimetal::cli {

/// From now on warnings of the library go to standard error, and more with BIMETAL_DEBUG; a rank
/// says which one it is.
void show_warnings();

}  // namespace bimetal::cli
