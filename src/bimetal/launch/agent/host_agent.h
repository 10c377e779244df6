#pragma once
// The launcher's arm on one host: starts the ranks there, hands on their output and signals, and
// lets none of them outlive the launcher.

#include <string>

namespace bimetal::launch {

/// Speaks agent_message.h with the launcher over standard input and output until all ranks have
/// ended or the launcher is gone, and returns the process's exit status. `version` is of this
/// Bimetal. Changes this process's environment and working directory: call it once, from main.
int run_host_agent(const std::string& version);

}  // namespace bimetal::launch
