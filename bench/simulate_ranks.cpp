// A job of many ranks, simulated: how long it takes to start, to add up, to lose a rank and to go
// on, and how many messages that costs each rank. Bimetal's own code runs, over simulated sockets
// and in virtual time: simulation/world.h.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <exception>

#include "simulation/many_ranks.h"

int main(int argc, char** argv) {
  simulation::JobOptions options;
  CLI::App app("A job of many ranks, simulated: its times, and the messages of a rank.");
  app.add_option("--ranks", options.ranks)->capture_default_str();
  app.add_option("--victim", options.victim, "rank that is lost")->capture_default_str();
  app.add_flag("--power", options.by_power, "its machine is off; else its process is killed");
  app.add_option("--latency", options.links.latency_s, "seconds")->capture_default_str();
  app.add_option("--rate", options.links.bytes_per_s, "bytes per second")->capture_default_str();
  app.add_option("--handling", options.links.message_s, "seconds that a message keeps a host busy")
      ->capture_default_str();
  app.add_option("--long", options.long_bytes, "bytes of the long all-reduce; 0: none")
      ->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  int status = 0;
  try {
    fmt::print("{:26}{:>11}{:>12}{:>12}{:>10}{:>10}{:>8}\n", "", "seconds", "messages", "bytes",
               "most", "rank 0's", "opened");
    for (const auto& phase : simulation::simulate_job(options)) {
      fmt::print("{:26}{:>11.6f}{:>12.1f}{:>12.0f}{:>10}{:>10}{:>8.1f}\n", phase.name,
                 phase.seconds, phase.messages, phase.bytes, phase.most_messages, phase.of_rank_0,
                 phase.connections);
    }
    fmt::print("{} ranks; of this machine's processor: {:.1f} s\n", options.ranks,
               static_cast<double>(std::clock()) / CLOCKS_PER_SEC);
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    status = 1;
  }
  std::fflush(stdout);
  std::_Exit(status);  // the simulated processes have not ended
}
