#pragma once
// Which Python runs what is written in Python.

#include <string>

namespace bimetal::launch {

/// BIMETAL_PYTHON, else the one that a build folder's `make setup` has made, else the system's
/// python3.
std::string python_program();

}  // namespace bimetal::launch
