#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <sstream>
#include <string>
#include <vector>

#include "bimetal/base/error.h"
#include "bimetal/base/files.h"
#include "bimetal/cli/json_output.h"
#include "bimetal/cli/plan/plan_output.h"
#include "bimetal/cli/terminal.h"
#include "bimetal/job/job_config.h"
#include "bimetal/parallel/mesh/mesh.h"
#include "bimetal/plan/memory/memory_plan.h"
#include "bimetal/plan/memory/memory_use.h"
#include "bimetal/plan/mesh/cluster.h"
#include "bimetal/plan/mesh/mesh_plan.h"
#include "bimetal/plan/mesh/mesh_search.h"
#include "bimetal/plan/mesh/pipeline_costs.h"
#include "bimetal/plan/plan.h"

namespace bimetal::cli {
namespace {

using plan::MeshChoice;

TableRow row_of(const plan::Cluster& cluster, const MeshChoice& choice,
                std::string_view mark = "") {
  const double peak = choice.peak_bytes.empty() ? 0 : *std::ranges::max_element(choice.peak_bytes);
  return {fmt::format("{}{}", mark, describe(cluster, choice)),
          choice.reason.empty() ? "the best" : choice.reason,
          plan::seconds_text(choice.step_s),
          plan::seconds_text(choice.waiting_s),
          fmt::format("{:.0f} %", 100 * std::max(0.0, choice.bubble)),
          plan::bytes_text(peak)};
}

TableRow row_of(const plan::Cluster& cluster, const plan::AskedMesh& asked) {
  constexpr std::string_view kMark = "as the job says";
  if (asked.choice) return row_of(cluster, *asked.choice, fmt::format("{}: ", kMark));
  return {std::string(kMark), "not planned: " + asked.reason, "", "", "", ""};
}

/// The text below the table: the job's own mesh, and the best if that is another.
std::vector<std::string> pictures_of(const plan::MeshProblem& on, const plan::MeshPlan& plan) {
  std::vector<std::string> lines;
  std::string before;
  const auto add = [&](std::string_view what, const MeshChoice& choice) {
    const auto picture = picture_of(on, choice);
    if (picture.empty() || picture == before) return;
    lines.push_back(fmt::format("{}: {}", what, describe(on.cluster, choice)));
    std::istringstream stages(picture);
    for (std::string line; std::getline(stages, line);) lines.push_back(line);
    before = picture;
  };
  if (plan.asked && plan.asked->choice) add("as the job says", *plan.asked->choice);
  if (!plan.best.empty()) add("the best", plan.best.front());
  return lines;
}

std::string_view name_of(plan::Scheme scheme) {
  switch (scheme) {
    case plan::Scheme::Alone: return "alone";
    case plan::Scheme::Data: return "data";
    case plan::Scheme::Pipeline: return "pipeline";
    case plan::Scheme::Tensor: return "tensor";
  }
  return "";
}

/// A device's operations in a step; null if they are not known.
nlohmann::json operations_json(const plan::MeshProblem& on, const MeshChoice& choice,
                               std::size_t stage, std::size_t device) {
  const auto work = work_of(on, choice, stage, device);
  return work.operations > 0 ? nlohmann::json(work.operations) : nlohmann::json();
}

/// As a job file has it: one number where all stages have as many.
nlohmann::json number_or_list(const std::vector<std::size_t>& of_stages) {
  return plan::all_alike(of_stages) ? nlohmann::json(of_stages.front()) : nlohmann::json(of_stages);
}

nlohmann::json choice_json(const plan::MeshProblem& on, const MeshChoice& choice) {
  nlohmann::json json = {{"title", describe(on.cluster, choice)},
                         {"scheme", name_of(choice.scheme)},
                         {"level", choice.keeping.level},
                         {"recomputed", choice.keeping.recomputed_at_once > 0},
                         {"schedule", to_string(choice.schedule)},
                         {"chunks", choice.chunks},
                         {"micro_batches", choice.micro_batches},
                         {"tensor", number_or_list(choice.parts())},
                         {"summed_s", choice.summed_s},
                         {"step_s", choice.step_s},
                         {"compute_s", choice.compute_s},
                         {"waiting_s", choice.waiting_s},
                         {"bubble", choice.bubble},
                         {"fits", choice.fits()},
                         {"missing_bytes", choice.missing_bytes},
                         {"reason", choice.reason},
                         {"keys", keys_of(choice)},
                         {"stages", nlohmann::json::array()}};
  std::size_t next = 0;
  for (std::size_t s = 0; s < choice.stages.size(); ++s) {
    const auto& stage = choice.stages[s];
    nlohmann::json own = {{"pieces", nlohmann::json::array()},
                          {"tensor_weights", stage.part_weights},
                          {"devices", nlohmann::json::array()}};
    for (const auto& [begin, end] : stage.pieces) {
      own["pieces"].push_back({{"begin", begin}, {"end", end}});
    }
    for (std::size_t i = 0; i < stage.devices.size(); ++i) {
      const auto replica = i / stage.parts();
      own["devices"].push_back({{"device", stage.devices[i]},
                                {"name", on.cluster.device(stage.devices[i]).name},
                                {"samples", stage.samples[replica]},
                                {"operations", operations_json(on, choice, s, i)},
                                {"peak_bytes", choice.peak_bytes[next]},
                                {"kept_bytes", choice.kept_bytes[next]}});
      ++next;
    }
    json["stages"].push_back(std::move(own));
  }
  return json;
}

void print_meshes(Terminal& terminal, const plan::MeshProblem& on, const plan::MeshPlan& plan) {
  std::vector<TableRow> rows = {{fmt::format("meshes ({} tried)", plan.tried), "", "step",
                                 "waiting", "bubble", "peak memory"}};
  if (plan.asked) rows.push_back(row_of(on.cluster, *plan.asked));
  const auto best_row = rows.size();
  for (const auto* const list : {&plan.best, &plan.others}) {
    for (const auto& choice : *list) rows.push_back(row_of(on.cluster, choice));
  }
  if (plan.lower) {
    rows.push_back(row_of(on.cluster, plan.lower->best,
                          fmt::format("train.precision=\"{}\": ", plan.lower->name)));
  }
  const auto lines = aligned(rows, 2);
  terminal.print("");
  terminal.print(terminal.coloured(Colour::bold, lines[0]));
  for (std::size_t i = 1; i < lines.size(); ++i) {
    const bool best = i == best_row && !plan.best.empty();
    terminal.print(best ? terminal.coloured(Colour::green, lines[i]) : lines[i]);
  }
  terminal.print("");
  const auto pictures = pictures_of(on, plan);
  for (const auto& line : pictures) terminal.print(line);
  if (!pictures.empty()) terminal.print("");
}

}  // namespace

void print_mesh(Terminal& terminal, const plan::MeshProblem& on, const plan::MeshPlan& plan,
                bool details) {
  if (details) print_meshes(terminal, on, plan);
  std::istringstream advice(plan::mesh_advice(on.cluster, plan));
  for (std::string line; std::getline(advice, line);) terminal.print(line);
}

nlohmann::json mesh_json(const plan::MeshProblem& on, const plan::MeshPlan& plan) {
  nlohmann::json json = {{"tried", plan.tried},
                         {"asked", nullptr},
                         {"lower_precision", nullptr},
                         {"best", nlohmann::json::array()},
                         {"others", nlohmann::json::array()},
                         {"advice", plan::mesh_advice(on.cluster, plan)}};
  const auto of_choice = [&](const MeshChoice& choice) { return choice_json(on, choice); };
  for (const auto& choice : plan.best) json["best"].push_back(of_choice(choice));
  for (const auto& choice : plan.others) json["others"].push_back(of_choice(choice));
  if (plan.asked) {
    const auto& [choice, reason] = *plan.asked;
    json["asked"] = choice ? of_choice(*choice) : nlohmann::json{{"reason", reason}};
  }
  if (plan.lower) {
    json["lower_precision"] = of_choice(plan.lower->best);
    json["lower_precision"]["precision"] = plan.lower->name;
  }
  return json;
}

void write_timeline(const plan::MeshProblem& on, const plan::MeshPlan& plan,
                    const std::filesystem::path& path) {
  if (plan.best.empty()) {
    throw Error(ErrorCode::InvalidArgument, "nothing fits: there is no step to draw a timeline of");
  }
  const auto& best = plan.best.front();
  std::vector<std::string> names;
  for (std::size_t s = 0; s < best.stages.size(); ++s) {
    const auto& stage = best.stages[s];
    const auto lists = best.even ? 1 : stage.replicas();
    const auto of_each = stage.devices.size() / lists;
    for (std::size_t list = 0; list < lists; ++list) {
      const auto more = of_each > 1 ? fmt::format(" and {} more", of_each - 1) : "";
      const auto first = stage.devices[list * of_each];
      names.push_back(fmt::format("{}: {}{}", s, on.cluster.device(first).name, more));
    }
  }
  const auto title =
      fmt::format("{}: {} a step", describe(on.cluster, best), plan::seconds_text(best.step_s));
  write_file_atomically(path, plan::timeline_svg(title, names, plan::run_of(on, best)));
}

void simulate_cluster(const PlanOutput& output, const plan::MeshInput* measured, double teraflops) {
  auto described = plan::read_cluster(output.simulate);
  plan::MeshInput input{.said = job::keys_in({})};
  if (measured) {
    input = *measured;
    input.facts.resize(1);
    for (auto& device : described.devices) device.slower *= teraflops;
  } else if (described.model) {
    input.facts = {*described.model};
    input.global_batch = described.global_batch;
    input.offloads = true;
  } else {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("{} has no [model]: add one, or name a job file whose model is to be "
                            "measured here",
                            output.simulate));
  }
  const plan::Cluster cluster(std::move(described.devices), std::move(described.network));
  const auto plan = plan::plan_mesh({input, cluster});
  if (!output.timeline.empty()) write_timeline({input, cluster}, plan, output.timeline);
  if (output.json) return print_json({{"mesh", mesh_json({input, cluster}, plan)}});
  Terminal terminal;
  terminal.print(
      fmt::format("{} devices, {} units, {:.2f} billion parameters, a global batch of {}",
                  cluster.size(), input.facts.front().units.size(),
                  1e-9 * static_cast<double>(input.facts.front().elements()), input.global_batch));
  print_mesh(terminal, {input, cluster}, plan, output.details);
}

namespace {

constexpr int kLookedOver = 16;  // devices

/// One number where all are that.
void take_counts(const std::vector<std::size_t>& counts, int& alike, std::vector<int>& each) {
  alike = static_cast<int>(std::ranges::max(counts));
  if (plan::all_alike(counts)) return;
  each.assign(counts.begin(), counts.end());
}

parallel::MeshShape shape_of_choice(const MeshChoice& choice) {
  parallel::MeshShape shape{.stages = static_cast<int>(choice.stages.size())};
  take_counts(choice.replicas(), shape.replicas, shape.uneven);
  take_counts(choice.parts(), shape.tensor, shape.parts);
  return shape;
}

std::vector<std::string> names_of(const plan::ModelFacts& facts) {
  std::vector<std::string> names;
  for (const auto& unit : facts.units) names.push_back(unit.name);
  return names;
}

/// One text for each device, or one for all if they are the same.
std::string each(const std::vector<std::string>& texts) {
  for (const auto& text : texts) {
    if (text != texts.front()) return fmt::format("{}", fmt::join(texts, " : "));
  }
  return texts.front();
}

std::string stage_text(const plan::MeshProblem& on, const MeshChoice& choice, std::size_t number) {
  const auto& stage = choice.stages[number];
  std::vector<std::string> elements, operations, names;
  bool known = true;
  for (std::size_t d = 0; d < stage.devices.size(); ++d) {
    const auto work = work_of(on, choice, number, d);
    elements.push_back(fmt::format("{:.0f}", work.elements));
    operations.push_back(plan::operations_text(work.operations));
    names.push_back(on.cluster.device(stage.devices[d]).name);
    known = known && work.counted;
  }
  return fmt::format("{}, {} parameters{}, on {}",
                     parallel::units_text(names_of(on.input.facts.front()), stage.pieces),
                     each(elements), known ? fmt::format(", {} a step", each(operations)) : "",
                     fmt::join(names, ", "));
}

}  // namespace

DeviceWork work_of(const plan::MeshProblem& on, const MeshChoice& choice, std::size_t stage,
                   std::size_t device) {
  const auto& own = choice.stages[stage];
  const auto samples = static_cast<double>(own.samples[device / own.parts()]);
  const auto& whole = on.facts_of(own.devices[device]);
  const auto part = own.parts() == 1
                        ? whole
                        : plan::facts_in_parts(whole, own.part_weights, device % own.parts());
  // The last stage also has the tensors that it shares with earlier ones.
  DeviceWork work{.elements = plan::tied_elements(part, own.pieces)};
  for (const auto& [begin, end] : own.pieces) {
    for (auto u = begin; u < end; ++u) {
      work.elements += static_cast<double>(part.units[u].elements());
      work.operations += plan::kForwardsOfStep * samples * part.units[u].operations;
      work.counted = work.counted || part.units[u].operations > 0;
    }
  }
  return work;
}

std::string picture_of(const plan::MeshProblem& on, const MeshChoice& choice) {
  const bool cut = choice.stages.size() > 1 || choice.most_parts() > 1;
  if (!cut || choice.devices() > kLookedOver) return "";
  std::vector<std::string> stages;
  for (std::size_t s = 0; s < choice.stages.size(); ++s) {
    stages.push_back(stage_text(on, choice, s));
  }
  return parallel::picture(shape_of_choice(choice), stages);
}

}  // namespace bimetal::cli
