#include "bimetal/predict/evaluate.h"

#include <fmt/format.h>
#include <torch/csrc/api/include/torch/types.h>

#include <asio/ip/host_name.hpp>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "bimetal/base/error.h"
#include "bimetal/base/files.h"
#include "bimetal/checkpoint/checkpoint.h"
#include "bimetal/checkpoint/safetensors.h"
#include "bimetal/cli/command.h"
#include "bimetal/cli/job_options.h"
#include "bimetal/cli/json_output.h"
#include "bimetal/cli/predict/mesh_of_use.h"
#include "bimetal/cli/python_command.h"
#include "bimetal/cli/rank/rank.h"
#include "bimetal/cli/start/run_job.h"
#include "bimetal/cli/terminal.h"
#include "bimetal/job/worker_spec.h"
#include "bimetal/launch/fetch_url.h"
#include "bimetal/launch/meet.h"
#include "bimetal/launch/rank_environment.h"
#include "bimetal/parallel/tensor/tensor_model.h"
#include "bimetal/predict/mesh/model_in_parts.h"
#include "bimetal/predict/predict.h"
#include "bimetal/progress/metrics.h"
#include "bimetal/progress/text.h"
#include "bimetal/task/catalog/job_task.h"
#include "bimetal/train/replicas.h"
#include "bimetal/train/setup.h"

namespace bimetal::cli {

struct EvaluatedModel {
  std::string checkpoint;
  progress::Evaluation evaluation;
};

/// The figures of all models, one after the other: only their sum is kept.
struct Evaluated {
  std::vector<EvaluatedModel> models;
  progress::Evaluation ensemble;  ///< of the mean; with one model that model's
  std::int64_t samples = 0;
  torch::Tensor probabilities;  ///< of classifiers: the mean, float64 [N, classes]
  torch::Tensor labels;         ///< likewise, int64 [N]
};

/// Shows what `request` asks for: a table or JSON on standard output, and --report.
void show(const Evaluated& all, const RankRequest& request);

namespace {

train::TrainerOptions options_of(const launch::RankEnvironment& env, const std::string& worker) {
  train::TrainerOptions options;
  options.worker = worker_of_use(job::parse_worker_spec(worker));
  options.local_rank = env.local_rank;
  options.local_world_size = env.local_world_size;
  options.host_name = asio::ip::host_name();
  options.fetch = launch::fetch_url;
  return options;
}

/// Replicas, each whole or of several ranks, compute equal parts of the chunks.
Evaluated evaluate_in(const comm::Group& group, const job::JobConfig& job,
                      const train::TrainerOptions& options, const std::string& checkpoint) {
  const auto timeout = milliseconds_of(job.parallel.timeout_s);
  const auto place = train::choose_place(job, options);
  std::unique_ptr<StatusLine> status;
  if (group.rank() == 0) {
    status = std::make_unique<StatusLine>();
    status->show("loading data …");
  }
  progress::Observer silent;
  const auto task = train::load_shared_task(group, job, options, silent);
  if (status) status->show(fmt::format("evaluating {} …", checkpoint));
  const parallel::Mesh mesh(group, train::shape_of(job.mesh, group.size()));
  const auto [path, part] =
      predict::load_in_parts(mesh, *task, place.dtype, checkpoint,
                             {.cuts = job.mesh.cuts,
                              .tensor_weights = train::part_weights(job.mesh, mesh.shape(), {}),
                              .device = place.device,
                              .timeout = timeout});
  parallel::pipeline::Runner runner(
      mesh, {.device = place.device, .speed = options.worker.speed, .timeout = timeout});
  const auto through =
      predict::through_stages(mesh, part.stage, runner, [&](std::span<const std::int64_t> chunks) {
        return parallel::schedule::Deal(mesh.widths(), chunks);
      });
  const parallel::tensor::TensorTask computed(*task, part.tensor_ranks());
  const auto sets = mesh.shape().even() ? mesh.shape().replicas : 1;
  Evaluated all;
  all.ensemble = predict::evaluate(computed, through, group,
                                   std::vector<double>(static_cast<std::size_t>(sets)),
                                   {.device = place.device, .timeout = timeout});
  all.models.push_back({path.string(), all.ensemble});
  if (const auto data = task->evaluation()) all.samples = data->size();
  return all;
}

}  // namespace

int evaluate_as_rank(const launch::RankEnvironment& env, const RankRequest& request) {
  auto job = request.job;
  job.mesh = mesh_of_evaluation(std::move(job.mesh), env.world_size);
  const auto group = join_group(env, job);
  const auto all = in_company(group, [&] {
    return evaluate_in(group, job, options_of(env, request.worker), request.checkpoint);
  });
  if (group.rank() != 0) return kSuccess;
  show(all, request);
  return kSuccess;
}

namespace {

constexpr const char* kEvaluateExamples = R"(Examples:
  bimetal evaluate examples/fashion_mnist.toml --checkpoint runs/fashion_mnist
  bimetal evaluate job.toml --checkpoint runs/a --checkpoint runs/b --predictions both.safetensors
  bimetal evaluate job.toml --checkpoint runs/large --worker cuda:0 --worker cpu --set mesh.stages=2

Several checkpoints are evaluated one by one and as an ensemble: the mean of what they predict.
A folder of checkpoints stands for its newest one.)";

struct EvaluateArguments {
  std::string job;
  std::vector<std::string> set, checkpoints, workers;
  std::string predictions, report;
  bool json = false;
};

/// Evaluates probabilities of classes: each model's figures, and those of their mean.
void evaluate_classifiers(const EvaluateArguments& arguments, const task::Task& task,
                          const task::Model& model, const predict::EvaluateOptions& options,
                          StatusLine& status, Evaluated& all) {
  all.labels = predict::labels_of(task);
  for (const auto& named : arguments.checkpoints) {
    status.show(fmt::format("evaluating {} …", named));
    const auto checkpoint = checkpoint::load_checkpoint_model(named, model);
    const auto probabilities = predict::predict(task, model, options);
    all.models.push_back({checkpoint.string(), predict::score(probabilities, all.labels)});
    all.probabilities =
        all.probabilities.defined() ? all.probabilities + probabilities : probabilities;
  }
  all.probabilities /= static_cast<double>(all.models.size());
  all.ensemble = predict::score(all.probabilities, all.labels);
}

/// Each by itself: every token has probabilities of a whole vocabulary, too many to be kept, and
/// outputs of a Python task need not be probabilities.
void evaluate_by_metrics(const EvaluateArguments& arguments, const task::Task& task,
                         const task::Model& model, const predict::EvaluateOptions& options,
                         StatusLine& status, Evaluated& all) {
  if (!arguments.predictions.empty() || arguments.checkpoints.size() > 1) {
    throw Error(
        ErrorCode::InvalidArgument,
        "models other than Bimetal's image classifiers are evaluated one at a time, without "
        "--predictions: give one --checkpoint");
  }
  status.show(fmt::format("evaluating {} …", arguments.checkpoints.front()));
  const auto checkpoint = checkpoint::load_checkpoint_model(arguments.checkpoints.front(), model);
  all.ensemble =
      predict::evaluate(task, model, launch::single_process_world(), std::vector{0.0}, options);
  all.models.push_back({checkpoint.string(), all.ensemble});
}

Evaluated evaluate_models(const EvaluateArguments& arguments, const job::JobConfig& job,
                          const std::string& worker) {
  train::TrainerOptions options;
  options.worker = worker_of_use(job::parse_worker_spec(worker));
  options.fetch = launch::fetch_url;
  const auto place = train::choose_place(job, options);
  StatusLine status;
  status.show("loading data …");
  progress::Observer silent;
  const auto task = train::load_shared_task(launch::single_process_world(), job, options, silent);
  const auto model = train::make_seeded_model(*task, job.train.seed, place);
  const predict::EvaluateOptions how{.device = place.device, .speed = options.worker.speed};
  Evaluated all;
  if (const auto data = task->evaluation()) all.samples = data->size();
  const bool classifies = !task->description().language && !task::is_python_task(job);
  const auto evaluate = classifies ? evaluate_classifiers : evaluate_by_metrics;
  evaluate(arguments, *task, model, how, status, all);
  return all;
}

int evaluate_alone(const EvaluateArguments& arguments, const job::JobConfig& job,
                   const std::string& worker) {
  const auto all = evaluate_models(arguments, job, worker);
  if (!arguments.predictions.empty()) {
    checkpoint::write_safetensors(
        arguments.predictions,
        {{"labels", all.labels}, {"probabilities", all.probabilities.to(torch::kFloat32)}});
  }
  show(all, {.report = arguments.report, .json = arguments.json});
  return kSuccess;
}

/// The request to several workers. They compute figures together: no worker has the probabilities
/// of all samples.
RankRequest request_of(const EvaluateArguments& arguments, const job::JobConfig& job) {
  if (arguments.checkpoints.size() > 1 || !arguments.predictions.empty()) {
    throw Error(
        ErrorCode::InvalidArgument,
        "several workers evaluate one checkpoint at a time, without --predictions: give one "
        "--checkpoint, or one --worker");
  }
  return {.work = Work::evaluate,
          .job = job,
          .report = arguments.report,
          .json = arguments.json,
          .checkpoint = arguments.checkpoints.front()};
}

int evaluate_command(const EvaluateArguments& arguments) {
  const auto job = job_of_use(read_job(arguments.job, arguments.set));
  if (launch::looks_like_rank()) {
    enter_python_for(job);
    if (const auto env = find_rank(job); env && env->world_size > 1) {
      auto request = request_of(arguments, job);
      request.worker = worker_of_rank(*env, arguments.workers, job);
      return run_rank(*env, request);
    }
  }
  // If each of the job's workers had the whole model, one will do.
  const auto workers = arguments.workers.empty() && !cuts_model(job.mesh)
                           ? std::vector<std::string>{"auto"}
                           : choose_workers(arguments.workers, job);
  if (workers.size() > 1) {
    LocalRanks ranks{request_of(arguments, job), workers};
    ranks.request.job.mesh = mesh_of_evaluation(job.mesh, static_cast<int>(workers.size()));
    launch::SignalWatch signals;
    return run_local_job(ranks, signals);
  }
  enter_python_for(job);
  return run_rank_process(
      [&](launch::StatusReporter&) { return evaluate_alone(arguments, job, workers.front()); });
}

nlohmann::ordered_json figures(const progress::Evaluation& evaluation) {
  nlohmann::ordered_json json;
  for (const auto& [name, value] : evaluation.metrics) json["test_" + name] = value;
  json["test_loss"] = evaluation.loss;
  return json;
}

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

}  // namespace

void show(const Evaluated& all, const RankRequest& request) {
  if (!request.report.empty()) write_file_atomically(request.report, report_text(all));
  if (request.json) {
    print_json_text(report_text(all));
  } else {
    print_table(all);
  }
}

void add_evaluate(CLI::App& app, Action& action) {
  auto arguments = std::make_shared<EvaluateArguments>();
  auto* command = app.add_subcommand("evaluate", "Test trained models: each, and their ensemble");
  add_job_options(*command, arguments->job, arguments->set);
  command
      ->add_option("--checkpoint", arguments->checkpoints,
                   "A checkpoint, or a folder of them; repeat it for an ensemble")
      ->required()
      ->type_name("DIR")
      ->allow_extra_args(false);
  add_workers(*command, arguments->workers,
              "What to compute on; several share the test samples, or stages of the model by the "
              "job's [mesh] (default: the job's where it has a mesh, else auto)");
  command
      ->add_option("--predictions", arguments->predictions,
                   "Write each test sample's probabilities and labels here")
      ->type_name("FILE.safetensors");
  command->add_option("--report", arguments->report, "Write the figures here")
      ->type_name("FILE.json");
  command->add_flag("--json", arguments->json, "Print them as JSON instead of a table");
  command->footer(kEvaluateExamples);
  command->callback(
      [arguments, &action] { action = [arguments] { return evaluate_command(*arguments); }; });
}

}  // namespace bimetal::cli
