#pragma once
// bimetal job: a job file with every key that it leaves out, and with what --set changes. Trains
// nothing; programs check by it what they are about to start.

#include "bimetal/cli/command.h"

namespace bimetal::cli {

void add_show_job(CLI::App& app, Action& action);

}  // namespace bimetal::cli
