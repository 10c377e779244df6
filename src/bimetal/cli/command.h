#pragma once
// How a subcommand joins the program: its file adds it to the application and sets `action`, which
// main runs once the whole command line is known to be right. An action returns the exit status, or
// throws; main prints the error and maps it (exit_status.h).

#include <CLI/CLI.hpp>
#include <functional>

namespace bimetal::cli {

using Action = std::function<int()>;

}  // namespace bimetal::cli
