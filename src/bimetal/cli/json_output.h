#pragma once
// How `--json` uses standard output if a command also reports progress.

#include <nlohmann/json_fwd.hpp>
#include <string_view>

namespace bimetal::cli {

/// From now on standard output is only for text given to the other functions here. All else that
/// this process and its children print goes to standard error. A child keeps to that by calling
/// this, too. Before anything is printed; a second call does nothing. Error(System).
void keep_output_for_json();

/// Prints a text of JSON, and the end of its line where it has none.
void print_json_text(std::string_view text);

/// Over several lines; bytes that are not UTF-8 are replaced.
void print_json(const nlohmann::ordered_json& json);

}  // namespace bimetal::cli
