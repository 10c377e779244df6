#pragma once
// Arguments as the one string that Windows hands to a program.

#include <string>
#include <vector>

namespace bimetal::launch {

/// The words so that CommandLineToArgvW and the C runtime read them as they are here (UTF-8):
/// quoted where they have blanks or quotes, or are empty.
std::wstring command_line_of(const std::vector<std::string>& words);

/// The words of this process's own command line, in UTF-8.
std::vector<std::string> own_command_line();

}  // namespace bimetal::launch
