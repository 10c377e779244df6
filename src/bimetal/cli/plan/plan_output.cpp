#include "bimetal/cli/plan/plan_output.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <sstream>
#include <string>
#include <vector>

#include "bimetal/cli/terminal.h"
#include "bimetal/plan/plan.h"
#include "bimetal/train/measure/measure_plan.h"

namespace bimetal::cli {
namespace {

using plan::Prediction;
using plan::Way;
using train::MeasuredPlan;

void print_workers(Terminal& terminal, const MeasuredPlan& plan) {
  constexpr std::size_t kTexts = 4;
  std::vector<TableRow> rows = {{"rank", "worker", "device", "host", "free memory",
                                 "matmul GFLOP/s", "conv GFLOP/s", "memory GB/s", "step alone"}};
  for (std::size_t r = 0; r < plan.devices.size(); ++r) {
    const auto& device = plan.devices[r];
    const auto& cost = plan.input.workers[r].cost;
    rows.push_back(
        {fmt::format("{}", r), device.worker, fmt::format("{} ({})", device.device, device.name),
         device.host, memory_text(device.memory_free_bytes),
         figure_text(device.matmul_float32_gflops), figure_text(device.convolution_float32_gflops),
         figure_text(device.memory_bytes_per_s * 1e-9),
         cost.known()
             ? plan::seconds_text(cost.seconds(static_cast<double>(plan.input.global_batch)))
             : "does not fit"});
  }
  const auto lines = aligned(rows, kTexts);
  terminal.print(terminal.coloured(Colour::bold, lines[0]));
  for (std::size_t i = 1; i < lines.size(); ++i) terminal.print(lines[i]);
}

void print_link(Terminal& terminal, const MeasuredPlan& plan) {
  if (plan.devices.size() < 2) return;
  terminal.print("");
  terminal.print(fmt::format(
      "link: {} in each direction, {} a round; {:.2f} MB of gradients in {} bucket{}",
      plan::link_text(plan.input.link.bytes_per_s), plan::seconds_text(plan.input.link.latency_s),
      static_cast<double>(plan.input.gradient_bytes()) * 1e-6, plan.input.bucket_bytes.size(),
      plan.input.bucket_bytes.size() == 1 ? "" : "s"));
}

std::string title_of(const MeasuredPlan& plan, const Prediction& prediction) {
  if (prediction.way == Way::Alone) {
    const auto rank = prediction.ranks[0];
    return fmt::format("rank {} alone ({})", rank,
                       plan.input.workers[static_cast<std::size_t>(rank)].name);
  }
  if (prediction.way == Way::Equal) return "equal split";
  if (prediction.way == Way::Servers) {
    return fmt::format("through {} parameter server{}", plan.input.servers,
                       plan.input.servers == 1 ? "" : "s");
  }
  if (prediction.ranks.size() + plan.plan.unusable.size() == plan.devices.size()) {
    return "balanced split";
  }
  return fmt::format("balanced split over ranks {}", fmt::join(prediction.ranks, ", "));
}

void print_predictions(Terminal& terminal, const MeasuredPlan& plan) {
  constexpr std::size_t kTexts = 2;
  std::vector<TableRow> rows = {
      {fmt::format("predicted for {} {} a step", plan.input.global_batch, plan.input.counts),
       "shares", "computing", "+ communication", "= step", plan.input.counts + "/s", "MB sent"}};
  for (const auto& prediction : plan.plan.predictions) {
    rows.push_back(
        {title_of(plan, prediction), fmt::format("{}", fmt::join(prediction.shares, " : ")),
         plan::seconds_text(prediction.compute_s), plan::seconds_text(prediction.communicate_s),
         plan::seconds_text(prediction.step_s), fmt::format("{:.0f}", prediction.samples_per_s),
         fmt::format("{:.2f}", prediction.sent_bytes * 1e-6)});
  }
  const auto lines = aligned(rows, kTexts);
  terminal.print("");
  terminal.print(terminal.coloured(Colour::bold, lines[0]));
  for (std::size_t i = 1; i < lines.size(); ++i) {
    const bool best = i - 1 == plan.plan.best;
    terminal.print(best ? terminal.coloured(Colour::green, lines[i]) : lines[i]);
  }
}

/// Which workers train.graphs is of use to; empty where nobody asks for it.
std::string graphs_text(const MeasuredPlan& plan) {
  if (!plan.graphs) return "";
  std::vector<std::string> with;
  for (std::size_t r = 0; r < plan.devices.size(); ++r) {
    if (plan.devices[r].has_graphs) {
      with.push_back(fmt::format("rank {} ({})", r, plan.devices[r].device));
    }
  }
  if (with.empty()) {
    return "train.graphs: no worker here has graphs that this build can use, so that it changes "
           "nothing.";
  }
  return fmt::format(
      "train.graphs: steps of {} are launched as graphs; what is forecast is without.",
      fmt::join(with, ", "));
}

std::string_view name_of(Way way) {
  switch (way) {
    case Way::Alone: return "alone";
    case Way::Equal: return "equal";
    case Way::Balanced: return "balanced";
    case Way::Servers: return "servers";
  }
  return "";
}

nlohmann::json worker_json(const MeasuredPlan& plan, std::size_t rank) {
  const auto& device = plan.devices[rank];
  const auto& cost = plan.input.workers[rank].cost;
  nlohmann::json json = {{"rank", rank},
                         {"host", device.host},
                         {"worker", device.worker},
                         {"device", device.device},
                         {"name", device.name},
                         {"graphs", plan.graphs && device.has_graphs},
                         {"memory_free_bytes", device.memory_free_bytes},
                         {"matmul_float32_gflops", device.matmul_float32_gflops},
                         {"matmul_half_gflops", device.matmul_half_gflops},
                         {"convolution_float32_gflops", device.convolution_float32_gflops},
                         {"memory_bytes_per_s", device.memory_bytes_per_s},
                         {"seconds_per_step", nullptr},
                         {"seconds_per_sample", nullptr}};
  if (cost.known()) {
    json["seconds_per_step"] = cost.alpha();
    json["seconds_per_sample"] = cost.beta();
  }
  return json;
}

nlohmann::json prediction_json(const Prediction& prediction) {
  return {{"way", name_of(prediction.way)},
          {"ranks", prediction.ranks},
          {"shares", prediction.shares},
          {"compute_s", prediction.compute_s},
          {"communicate_s", prediction.communicate_s},
          {"step_s", prediction.step_s},
          {"samples_per_s", prediction.samples_per_s},
          {"sent_bytes", prediction.sent_bytes},
          {"server_bytes", prediction.server_bytes}};
}

/// The advice on sharing whole models; empty where no worker can hold one.
std::string advice_of(const MeasuredPlan& plan) {
  return plan.plan.predictions.empty() ? "" : plan::advice(plan.input, plan.plan);
}

}  // namespace

void print_plan(Terminal& terminal, const MeasuredPlan& plan, bool details) {
  constexpr int kVerdict = 2;  // lines
  std::istringstream advice(advice_of(plan));
  std::string line;
  for (int n = 0; (details || n < kVerdict) && std::getline(advice, line); ++n) {
    terminal.print(n == 0 ? terminal.coloured(Colour::bold, line) : line);
  }
  if (details) {
    if (!plan.plan.predictions.empty()) terminal.print("");
    print_workers(terminal, plan);
    print_link(terminal, plan);
    if (!plan.plan.predictions.empty()) print_predictions(terminal, plan);
  }
  if (const auto graphs = graphs_text(plan); !graphs.empty()) terminal.print(graphs);
  if (plan.memory) print_memory(terminal, plan.memory_input, *plan.memory, details);
  if (plan.cluster) print_mesh(terminal, {plan.mesh_input, *plan.cluster}, plan.mesh, details);
  if (!details) terminal.print("What was measured and compared: --details.");
}

nlohmann::json plan_json(const MeasuredPlan& plan) {
  nlohmann::json json = {{"global_batch", plan.input.global_batch},
                         {"gradient_bytes", plan.input.gradient_bytes()},
                         {"workers", nlohmann::json::array()},
                         {"link", nullptr},
                         {"predictions", nlohmann::json::array()},
                         {"best", plan.plan.best},
                         {"crossover_batch", nullptr},
                         {"crossover_bytes_per_s", nullptr},
                         {"servers", plan.input.servers},
                         {"crossover_servers", nullptr},
                         {"advice", advice_of(plan)},
                         {"memory", nullptr},
                         {"mesh", nullptr}};
  for (std::size_t r = 0; r < plan.devices.size(); ++r) {
    json["workers"].push_back(worker_json(plan, r));
  }
  if (plan.devices.size() > 1) {
    json["link"] = {{"latency_s", plan.input.link.latency_s},
                    {"bytes_per_s", plan.input.link.bytes_per_s}};
  }
  for (const auto& prediction : plan.plan.predictions) {
    json["predictions"].push_back(prediction_json(prediction));
  }
  if (plan.plan.crossover_batch) json["crossover_batch"] = *plan.plan.crossover_batch;
  if (plan.plan.crossover_bytes_per_s) {
    json["crossover_bytes_per_s"] = *plan.plan.crossover_bytes_per_s;
  }
  if (plan.memory) json["memory"] = memory_json(plan.memory_input, *plan.memory);
  if (plan.cluster) json["mesh"] = mesh_json({plan.mesh_input, *plan.cluster}, plan.mesh);
  if (plan.plan.crossover_servers) json["crossover_servers"] = *plan.plan.crossover_servers;
  return json;
}

}  // namespace bimetal::cli
