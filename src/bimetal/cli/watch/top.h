#pragma once
// bimetal top: how a running job gets on, live.

#include <string>

#include "bimetal/cli/command.h"

namespace bimetal::cli {

struct TopArguments {
  std::string address, token_file;
  double interval_s = 1;
  bool once = false, json = false;
};

int top_command(const TopArguments& arguments);

void add_top(CLI::App& app, Action& action);

}  // namespace bimetal::cli
