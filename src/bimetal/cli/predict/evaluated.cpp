#include "bimetal/cli/predict/evaluated.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "bimetal/cli/table.h"
#include "bimetal/cli/terminal.h"

namespace bimetal::cli {

void print_table(const Evaluated& all) {
  std::vector<TableRow> rows = {{"checkpoint"}};
  for (const auto& metric : all.ensemble.metrics) {
    rows.front().push_back(progress::label_of(metric));
  }
  rows.front().push_back("loss");
  const auto add = [&rows](const std::string& name, const progress::Evaluation& evaluation) {
    TableRow row = {name};
    for (const auto& metric : evaluation.metrics) row.push_back(progress::text_of(metric));
    row.push_back(fmt::format("{:.4f}", evaluation.loss));
    rows.push_back(std::move(row));
  };
  for (const auto& model : all.models) add(model.checkpoint, model.evaluation);
  if (all.models.size() > 1) {
    add(fmt::format("ensemble of {}", all.models.size()), all.ensemble);
  }
  Terminal terminal;
  const auto lines = aligned(rows, 1);
  terminal.print(terminal.coloured(Colour::bold, lines[0]));
  for (std::size_t i = 1; i < lines.size(); ++i) terminal.print(lines[i]);
}

namespace {

nlohmann::ordered_json figures(const progress::Evaluation& evaluation) {
  nlohmann::ordered_json json;
  for (const auto& [name, value] : evaluation.metrics) json["test_" + name] = value;
  json["test_loss"] = evaluation.loss;
  return json;
}

}  // namespace

std::string report_text(const Evaluated& all) {
  nlohmann::ordered_json json = {{"samples", all.samples},
                                 {"checkpoints", nlohmann::ordered_json::array()},
                                 {"ensemble", figures(all.ensemble)}};
  for (const auto& model : all.models) {
    auto entry = figures(model.evaluation);
    entry["checkpoint"] = model.checkpoint;
    json["checkpoints"].push_back(entry);
  }
  return json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace bimetal::cli
