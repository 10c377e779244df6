#include <fmt/format.h>

#include <asio/ip/host_name.hpp>
#include <memory>
#include <utility>

#include "bimetal/base/files.h"
#include "bimetal/cli/exit_status.h"
#include "bimetal/cli/predict/evaluated.h"
#include "bimetal/cli/predict/mesh_of_use.h"
#include "bimetal/cli/rank/rank.h"
#include "bimetal/cli/rank/rank_process.h"
#include "bimetal/cli/terminal.h"
#include "bimetal/job/worker_spec.h"
#include "bimetal/launch/fetch_url.h"
#include "bimetal/parallel/tensor/tensor_model.h"
#include "bimetal/predict/mesh/model_in_parts.h"
#include "bimetal/train/replicas.h"
#include "bimetal/train/setup.h"

namespace bimetal::cli {
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
  if (!request.report.empty()) write_file_atomically(request.report, report_text(all));
  print_table(all);
  return kSuccess;
}

}  // namespace bimetal::cli
