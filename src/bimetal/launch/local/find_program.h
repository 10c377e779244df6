#pragma once
// Where a command's program lies, as a shell would find it.

#include <string>

namespace bimetal::launch {

/// Path of the program: `name` itself if it names a folder, else the first of that name in the
/// folders of PATH; on Windows with its ending. Error(InvalidArgument) names the host and what was
/// looked through.
std::string find_program(const std::string& name);

}  // namespace bimetal::launch
