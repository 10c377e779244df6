#pragma once
// This process's environment variables, in UTF-8 on every system. Not thread-safe, as the
// environment itself.

#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace bimetal::launch {

/// Variables and their values.
using NamedValues = std::vector<std::pair<std::string, std::string>>;

/// All of them. On Windows without those of a drive's folder, whose names begin with "=".
NamedValues own_environment();

/// Nothing where it is not set.
std::optional<std::string> environment_variable(const std::string& name);

/// For this process and those that it starts from now on.
void set_environment_variable(const std::string& name, const std::string& value);

/// Leaves a value that is there.
inline void default_environment_variable(const std::string& name, const std::string& value) {
  if (!environment_variable(name)) set_environment_variable(name, value);
}

/// Folder of the user's own files, if the environment names it.
std::optional<std::string> home_folder();

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

#ifdef _WIN32
// Arguments as the one string that Windows hands to a program.

/// The words so that CommandLineToArgvW and the C runtime read them as they are here (UTF-8):
/// quoted where they have blanks or quotes, or are empty.
std::wstring command_line_of(const std::vector<std::string>& words);

/// The words of this process's own command line, in UTF-8.
std::vector<std::string> own_command_line();
#endif

}  // namespace bimetal::launch
