#pragma once
// What `--json` makes of standard output where a command also says how it gets on.

#include <string_view>

namespace bimetal::cli {

/// From now on standard output is for what print_json_text() is given. Whatever else this process
/// prints, and those that it starts, goes to standard error; a process that finds itself started so
/// keeps to it by calling this, too. Before anything is printed; a second call does nothing.
/// Error(System).
void keep_output_for_json();

/// Prints a text of JSON, and the end of its line where it has none.
void print_json_text(std::string_view text);

}  // namespace bimetal::cli
