#pragma once
// Where programs lie, as a shell would find them, and which Python runs what is written in Python.

#include <string>
#include <vector>

namespace bimetal::launch {

/// Path of the program: `name` itself if it names a folder, else the first of that name in the
/// folders of PATH; on Windows with its ending. Error(InvalidArgument) names the host and what was
/// looked through.
std::string find_program(const std::string& name);

/// BIMETAL_PYTHON, else the one that a build folder's `make setup` has made, else the system's
/// python3.
std::string python_program();

/// The package of this program's build folder, if it has one, comes before one that is installed:
/// for the processes that this one starts.
void prefer_own_package();

/// The command as it is to be run: a file whose name ends in ".py" by that Python, which then has
/// that package; any other by its path, as find_program() has it. Errors: its.
std::vector<std::string> runnable(std::vector<std::string> command);

}  // namespace bimetal::launch
