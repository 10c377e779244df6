#include <asio/ip/host_name.hpp>
#include <memory>

#include "bimetal/base/error.h"
#include "bimetal/cli/json_output.h"
#include "bimetal/cli/plan/plan_output.h"
#include "bimetal/cli/rank/rank.h"
#include "bimetal/cli/rank/rank_observer.h"
#include "bimetal/cli/terminal.h"
#include "bimetal/job/worker_spec.h"
#include "bimetal/launch/fetch_url.h"
#include "bimetal/train/measure/measure_plan.h"

namespace bimetal::cli {
namespace {

class PhaseLine final : public progress::Observer {
 public:
  void on_phase(const std::string& what) override { status_.show(what + " …"); }
  void on_data(const progress::DataProgress& progress) override {
    status_.show(data_line(progress));
  }

 private:
  StatusLine status_;
};

train::MeasuredPlan measure(const launch::RankEnvironment& env, const RankRequest& request,
                            progress::Observer& observer) {
  train::TrainerOptions options;
  options.worker = job::parse_worker_spec(request.worker);
  options.local_rank = env.local_rank;
  options.local_world_size = env.local_world_size;
  options.host_name = asio::ip::host_name();
  options.fetch = launch::fetch_url;
  // Otherwise the measurements stand for other devices, of which its mesh may well be.
  const bool for_these = request.plan.simulate.empty();
  const auto group = join_group(env, request.job);
  return in_company(
      group, [&] { return train::measure_plan(request.job, group, options, observer, for_these); });
}

void show(const train::MeasuredPlan& plan, const PlanOutput& output) {
  if (!output.simulate.empty()) {
    if (!plan.cluster) {
      throw Error(ErrorCode::OutOfMemory,
                  "the model's units could not be measured on this machine");
    }
    return simulate_cluster(output, &plan.mesh_input,
                            1e-3 * plan.devices.front().matmul_float32_gflops);
  }
  if (!output.timeline.empty() && plan.cluster) {
    write_timeline({plan.mesh_input, *plan.cluster}, plan.mesh, output.timeline);
  }
  if (output.json) return print_json(plan_json(plan));
  Terminal terminal;
  print_plan(terminal, plan, output.details);
}

}  // namespace

int plan_as_rank(const launch::RankEnvironment& env, const RankRequest& request) {
  if (env.rank != 0) {
    progress::Observer silent;
    measure(env, request, silent);
    return kSuccess;
  }
  auto phases = std::make_unique<PhaseLine>();
  const auto plan = measure(env, request, *phases);
  phases.reset();  // takes its line away
  show(plan, request.plan);
  return kSuccess;
}

}  // namespace bimetal::cli
