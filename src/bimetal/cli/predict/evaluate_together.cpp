#include "bimetal/cli/predict/evaluate_together.h"

#include <fmt/format.h>

#include <asio/ip/host_name.hpp>
#include <memory>
#include <utility>

#include "bimetal/base/atomic_file.h"
#include "bimetal/cli/exit_status.h"
#include "bimetal/cli/predict/evaluated.h"
#include "bimetal/cli/predict/mesh_of_use.h"
#include "bimetal/cli/status_line.h"
#include "bimetal/cli/train/local_job.h"
#include "bimetal/cli/train/rank_process.h"
#include "bimetal/launch/fetch_url.h"
#include "bimetal/parallel/tensor/tensor_task.h"
#include "bimetal/predict/mesh/model_in_parts.h"
#include "bimetal/predict/mesh/through_stages.h"
#include "bimetal/train/replicas.h"
#include "bimetal/train/setup.h"

namespace bimetal::cli {
namespace {

constexpr const char* kEvaluationRank = "evaluate-rank";

train::TrainerOptions options_of(const launch::RankEnvironment& env,
                                 const job::WorkerSpec& worker) {
  train::TrainerOptions options;
  options.worker = worker_of_use(worker);
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

int evaluate_together(const TogetherArguments& arguments, job::JobConfig job,
                      const std::vector<std::string>& workers) {
  job.mesh = mesh_of_evaluation(std::move(job.mesh), static_cast<int>(workers.size()));
  LocalRanks ranks{.job = std::move(job), .workers = workers, .rank_command = {kEvaluationRank}};
  ranks.rank_command.push_back("--checkpoint=" + arguments.checkpoint);
  ranks.report = arguments.report;
  launch::SignalWatch signals;
  return run_local_job(ranks, signals, [] {});  // nothing to save: the ranks just end
}

int evaluate_as_rank(const launch::RankEnvironment& env, job::JobConfig job,
                     const job::WorkerSpec& worker, const TogetherArguments& arguments) {
  return run_rank_process([&](launch::StatusReporter&) {
    job.mesh = mesh_of_evaluation(std::move(job.mesh), env.world_size);
    const auto group = join_group(env, job);
    const auto all = in_company(group, [&] {
      return evaluate_in(group, job, options_of(env, worker), arguments.checkpoint);
    });
    if (group.rank() != 0) return kSuccess;
    if (!arguments.report.empty()) write_file_atomically(arguments.report, report_text(all));
    print_table(all);
    return kSuccess;
  });
}

void add_evaluate_rank(CLI::App& app, Action& action) {
  struct Options {
    std::string worker = "auto";
    TogetherArguments arguments;
  };
  auto options = std::make_shared<Options>();
  auto* command = app.add_subcommand(kEvaluationRank, "One rank of an evaluation");
  command->group("");  // not for people: left out of --help
  command->add_option("--checkpoint", options->arguments.checkpoint);
  command->add_option("--report", options->arguments.report);
  command->add_option("--worker", options->worker);
  command->callback([options, &action] {
    action = [options] {
      const auto [env, job] = launched_rank();
      return evaluate_as_rank(env, job, job::parse_worker_spec(options->worker),
                              options->arguments);
    };
  });
}

}  // namespace bimetal::cli
