#pragma once
// What `--json` makes of standard output where a command also says how it gets on.

#include <nlohmann/json_fwd.hpp>
#include <string_view>

namespace bimetal::cli {

/// From now on standard output is for what the others here are given. Whatever else this process
/// prints, and those that it starts, goes to standard error; a process that finds itself started so
/// keeps to it by calling this, too. Before anything is printed; a second call does nothing.
/// Error(System).
void keep_output_for_json();

/// Prints a text of JSON, and the end of its line where it has none.
void print_json_text(std::string_view text);

/// Over several lines; what is not UTF-8 is replaced.
void print_json(const nlohmann::ordered_json& json);

}  // namespace bimetal::cli
