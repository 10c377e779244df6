#pragma once
// bimetal devices: what this machine has to train on, and how fast it is.

#include "bimetal/cli/command.h"

namespace bimetal::cli {

struct DevicesArguments {
  bool json = false;
};

int devices_command(const DevicesArguments& arguments);

void add_devices(CLI::App& app, Action& action);

}  // namespace bimetal::cli
