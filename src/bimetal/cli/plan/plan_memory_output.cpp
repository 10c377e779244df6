#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <sstream>
#include <string>
#include <vector>

#include "bimetal/cli/plan/plan_output.h"
#include "bimetal/cli/terminal.h"
#include "bimetal/plan/plan.h"

namespace bimetal::cli {
namespace {

using plan::bytes_text;

double room_of(const plan::RankMemory& rank) {
  return std::min(rank.room, rank.pool_room);
}

std::string room_text(double bytes) {
  return std::isfinite(bytes) ? bytes_text(bytes) : "?";
}

void print_rows(Terminal& terminal, const std::vector<TableRow>& rows, std::size_t texts,
                std::size_t marked) {
  const auto lines = aligned(rows, texts);
  terminal.print("");
  terminal.print(terminal.coloured(Colour::bold, lines[0]));
  for (std::size_t i = 1; i < lines.size(); ++i) {
    terminal.print(i == marked ? terminal.coloured(Colour::green, lines[i]) : lines[i]);
  }
}

void print_kinds(Terminal& terminal, const plan::MemoryInput& input, const plan::MemoryPlan& plan) {
  std::vector<TableRow> rows = {{"memory as the job has it", "at", "parameters", "gradients",
                                 "optimizer", "activations", "buffers", "= model", "free",
                                 "program", "peak", "kept"}};
  for (std::size_t r = 0; r < input.ranks.size(); ++r) {
    const auto& use = plan.asked().uses[r];
    rows.push_back({input.ranks[r].name, std::string(use.moment), bytes_text(use.parameters),
                    bytes_text(use.gradients), bytes_text(use.optimizer),
                    bytes_text(use.activations), bytes_text(use.buffers), bytes_text(use.model()),
                    room_text(room_of(input.ranks[r])), bytes_text(use.program),
                    bytes_text(use.peak()), bytes_text(use.kept)});
  }
  print_rows(terminal, rows, 2, 0);
}

void print_ways(Terminal& terminal, const plan::MemoryInput& input, const plan::MemoryPlan& plan) {
  std::vector<TableRow> rows = {{"ways to keep it", "fits"}};
  for (std::size_t r = 0; r < input.ranks.size(); ++r) {
    rows[0].push_back(fmt::format("model on rank {}", r));
  }
  rows[0].push_back("adds to a step");
  std::size_t marked = 0;
  for (std::size_t i = 0; i < plan.ways.size(); ++i) {
    const auto& way = plan.ways[i];
    const auto name = way.asked ? "as the job has it: " + describe(way) : describe(way);
    TableRow row = {name, way.fits() ? "yes" : "lacks " + bytes_text(way.most_missing())};
    for (const auto& use : way.uses) row.push_back(bytes_text(use.model()));
    row.push_back(plan::seconds_text(way.added_s));
    rows.push_back(std::move(row));
    if (plan.best == i) marked = rows.size() - 1;
  }
  print_rows(terminal, rows, 2, marked);
}

nlohmann::json use_json(const plan::MemoryUse& use) {
  return {{"moment", use.moment},         {"program", use.program},
          {"parameters", use.parameters}, {"gradients", use.gradients},
          {"optimizer", use.optimizer},   {"activations", use.activations},
          {"buffers", use.buffers},       {"kept", use.kept},
          {"peak", use.peak()},           {"host", use.host}};
}

std::string_view name_of(plan::Place place) {
  return place == plan::Place::Disk ? "disk" : place == plan::Place::Host ? "host" : "none";
}

}  // namespace

void print_memory(Terminal& terminal, const plan::MemoryInput& input, const plan::MemoryPlan& plan,
                  bool details) {
  if (details) {
    print_kinds(terminal, input, plan);
    print_ways(terminal, input, plan);
    terminal.print("");
  }
  std::istringstream advice(plan::memory_advice(input, plan));
  for (std::string line; std::getline(advice, line);) terminal.print(line);
}

nlohmann::json memory_json(const plan::MemoryInput& input, const plan::MemoryPlan& plan) {
  nlohmann::json json = {{"ranks", nlohmann::json::array()},
                         {"ways", nlohmann::json::array()},
                         {"best", nullptr},
                         {"advice", plan::memory_advice(input, plan)}};
  for (const auto& rank : input.ranks) {
    nlohmann::json own = {{"name", rank.name},
                          {"program_bytes", rank.program},
                          {"room_bytes", nullptr},
                          {"shard", rank.load.shard},
                          {"samples", rank.load.samples},
                          {"samples_at_once", rank.load.at_once},
                          {"offload_optimizer", name_of(rank.optimizer)},
                          {"offload_parameters", name_of(rank.parameters)}};
    if (std::isfinite(room_of(rank))) own["room_bytes"] = room_of(rank);
    json["ranks"].push_back(std::move(own));
  }
  for (const auto& way : plan.ways) {
    nlohmann::json own = {{"asked", way.asked},
                          {"level", way.keeping.level},
                          {"offload_optimizer", nullptr},
                          {"offload_parameters", nullptr},
                          {"recomputed_at_once", way.keeping.recomputed_at_once},
                          {"update", way.keeping.update_in_backward ? "backward" : "step"},
                          {"fits", way.fits()},
                          {"missing_bytes", way.missing},
                          {"added_s", way.added_s},
                          {"uses", nlohmann::json::array()}};
    if (!way.unlike) {
      own["offload_optimizer"] = name_of(way.keeping.optimizer);
      own["offload_parameters"] = name_of(way.keeping.parameters);
    }
    for (const auto& use : way.uses) own["uses"].push_back(use_json(use));
    json["ways"].push_back(std::move(own));
  }
  if (plan.best) json["best"] = *plan.best;
  return json;
}

}  // namespace bimetal::cli
