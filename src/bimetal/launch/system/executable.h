#pragma once
// What this system takes for a program: how its files are called, and where they lie.

#include <string>
#include <vector>

namespace bimetal::launch {

/// Whether this file can be started. On Windows programs alone (.exe, .com): what cmd.exe runs
/// (.bat, .cmd) it reads anew, by rules that no quoting is safe from.
bool is_executable(const std::string& path);

/// The names that the file of the program `name` may have, the likeliest first.
std::vector<std::string> executable_names(const std::string& name);

/// Whether `name` says which folder it lies in.
bool names_a_folder(const std::string& name);

/// The folders of a variable such as PATH, in its order; ours where there is none.
std::vector<std::string> program_folders();

/// From now on programs are looked for there, too, behind these: by this process and by those that
/// it starts. Not thread-safe, as the environment itself.
void add_program_folder(const std::string& folder);

}  // namespace bimetal::launch
