#include "bimetal/predict/mesh/model_in_parts.h"

#include <fmt/format.h>
#include <torch/csrc/api/include/torch/types.h>

#include <algorithm>
#include <array>
#include <limits>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "bimetal/base/deadline.h"
#include "bimetal/base/error.h"
#include "bimetal/checkpoint/checkpoint.h"
#include "bimetal/checkpoint/huggingface.h"
#include "bimetal/checkpoint/parts/part_slices.h"
#include "bimetal/checkpoint/slices/shared_reader.h"
#include "bimetal/comm/exchange.h"
#include "bimetal/parallel/group_room.h"
#include "bimetal/parallel/pipeline/runner.h"
#include "bimetal/parallel/schedule/cut.h"
#include "bimetal/parallel/schedule/deal.h"
#include "bimetal/parallel/shard/flat_parameters.h"

namespace bimetal::predict {
namespace {

namespace fs = std::filesystem;

/// For parameters, before a pass of any length: only the largest part counts.
constexpr int kManyPasses = 1000;

/// Takes a unit to its place and its memory away.
task::UnitMade hollowed(const device::Place& place) {
  return [place](const task::Unit& unit) {
    task::Model{{unit}}.to(place.device, place.dtype);
    for (const auto& named : unit.parameters) parallel::shard::hollow_out(named.tensor);
  };
}

task::Model hollow_model(const task::Task& task, const device::Place& place) {
  if (auto by_units = task.make_model_by_units(hollowed(place))) return std::move(*by_units);
  auto model = task.make_model();
  for (const auto& unit : model.units) hollowed(place)(unit);
  return model;
}

/// By stage, the room on each rank of the replica with the least.
std::vector<double> room_of_stages(const parallel::Mesh& mesh, const PartOptions& options) {
  const auto free = parallel::shard::weights_by_memory(mesh.world(), options.device,
                                                       Deadline::after(options.timeout));
  const auto& shape = mesh.shape();
  std::vector<double> rooms;
  for (int stage = 0; stage < shape.stages; ++stage) {
    auto least = std::numeric_limits<double>::infinity();
    for (int replica = 0; replica < shape.replicas_of(stage); ++replica) {
      double room = 0;
      for (int part = 0; part < shape.tensor_of(stage); ++part) {
        room += free[static_cast<std::size_t>(rank_at(shape, {stage, replica, part}))];
      }
      least = std::min(least, room);
    }
    rooms.push_back(least);
  }
  return rooms;
}

std::vector<std::size_t> begins_in(const task::Model& whole, const parallel::Mesh& mesh,
                                   const PartOptions& options) {
  const auto stages = static_cast<std::size_t>(mesh.shape().stages);
  const auto units = whole.units.size();
  if (!options.cuts.empty() || stages == 1 || stages > units) {
    return parallel::pipeline::begins_of(options.cuts, stages, units);
  }
  parallel::schedule::CutProblem problem{.seconds = {}, .micro_batches = kManyPasses};
  for (const auto room : room_of_stages(mesh, options)) {
    auto& filled = problem.seconds.emplace_back();
    for (const auto& unit : whole.units) {
      double bytes = 1;
      for (const auto& named : unit.parameters) bytes += static_cast<double>(named.tensor.nbytes());
      filled.push_back(bytes / room);
    }
  }
  return parallel::schedule::cut(problem).begins;
}

struct CutModel {
  parallel::ModelPart part;
  std::string picture;
};

CutModel cut_hollow(const task::Model& whole, const parallel::Mesh& mesh,
                    const PartOptions& options) {
  const auto& shape = mesh.shape();
  const auto begins = begins_in(whole, mesh, options);
  const auto cuts = parallel::cuts_of_stages(whole, options.tensor_weights);
  std::vector<std::string> units;
  for (int stage = 0; stage < shape.stages; ++stage) {
    units.push_back(parallel::pipeline::describe_units(whole, begins, shape.stages, stage));
  }
  CutModel made{parallel::take_hollow_part(mesh, whole, begins, cuts, options.timeout),
                parallel::picture(shape, units)};
  made.part.stage.model.eval();
  return made;
}

void take_cut(ModelInParts& made, CutModel cut) {
  made.part = std::move(cut.part);
  made.picture = std::move(cut.picture);
}

void take_values(checkpoint::SharedReader& saved, const parallel::ModelPart& part) {
  saved.each_takes(
      [&](const checkpoint::SharedReader::Read& read) { checkpoint::read_part(part, read.model); });
}

/// As text; empty where `run` is no folder in Hugging Face's form.
std::string huggingface_config_in(const fs::path& run) {
  if (!fs::exists(run / "config.json")) return "";
  return checkpoint::huggingface_config_text(checkpoint::read_huggingface_config(run));
}

ModelInParts load_huggingface_in_parts(const parallel::Mesh& mesh, const fs::path& folder,
                                       const std::string& config_of_rank_0,
                                       const PartOptions& options) {
  const auto config = checkpoint::read_huggingface_config(folder);
  if (checkpoint::huggingface_config_text(config) != config_of_rank_0) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("{} holds another model on rank {} than on rank 0: copy the same "
                            "folder to every machine",
                            folder.string(), mesh.world().rank()));
  }
  checkpoint::HuggingFaceWeights weights(folder);
  ModelInParts made;
  made.description = {.name = config.family, .language = config};
  const auto whole =
      checkpoint::draw_described_model(made.description, hollowed({.device = options.device}));
  weights.require_fitting(whole);
  take_cut(made, cut_hollow(whole, mesh, options));
  checkpoint::read_part(made.part, [&](const std::string& name, const checkpoint::Slice& wanted) {
    return weights.read(name, wanted);
  });
  return made;
}

class InParts final : public Foretelling {
 public:
  InParts(const parallel::Mesh& mesh, parallel::ModelPart part, const TextOptions& options)
      : mesh_(mesh),
        part_(std::move(part)),
        options_(options),
        world_(mesh.world()),
        pass_(mesh.widths(), std::array<std::int64_t, 1>{1}),
        runner_(mesh,
                {.device = options.device, .speed = options.speed, .timeout = options.timeout}) {}

  torch::Tensor logits(const torch::Tensor& tokens) override {
    torch::Tensor last;
    const auto work = forward_alone(
        part_.stage, [&](int /*one*/) { return task::Values{tokens.to(options_.device)}; });
    runner_.run_forward(pass_, work, [&](int /*one*/, const task::Values& outputs) {
      last = outputs.at(0).select(1, -1).squeeze(0);
    });
    if (!last.defined()) return last;
    const auto whole = of_all_parts(last);
    return world_.rank() == who_draws() ? whole : torch::Tensor();
  }

  /// Stages without a block have nothing to remember: the others speak for them, once.
  bool remembers(const task::Past& past) override {
    if (remembers_) return *remembers_;
    std::array<std::int64_t, 1> any = {past.remembers() ? 1 : 0};
    world_.all_reduce(comm::buffer(std::span(any)), comm::ReduceOp::max, soon()).wait();
    remembers_ = any.front() > 0;
    return *remembers_;
  }

  std::int64_t agree(std::optional<std::int64_t> drawn) override {
    std::array<std::int64_t, 1> token = {drawn.value_or(-1)};
    world_.broadcast(comm::buffer(std::span(token)), who_draws(), soon()).wait();
    return token.front();
  }

 private:
  Deadline soon() const { return Deadline::after(options_.timeout); }
  int who_draws() const {
    return rank_at(mesh_.shape(), {mesh_.shape().stages - 1, /*replica=*/0, /*tensor=*/0});
  }

  /// The logits of the whole vocabulary, from those of the tokens that are here.
  torch::Tensor of_all_parts(const torch::Tensor& here) const {
    const auto ranks = part_.tensor_ranks();
    if (!ranks || here.numel() == options_.vocabulary) return here;
    std::vector<std::size_t> counts;
    for (int rank = 0; rank < ranks->group().size(); ++rank) {
      counts.push_back(static_cast<std::size_t>(ranks->part(options_.vocabulary, rank).count));
    }
    const auto own = here.to(torch::kCPU).contiguous();
    const auto all = torch::empty({options_.vocabulary}, own.options());
    auto group = ranks->group();
    group.all_gather(parallel::tensor_buffer(own), parallel::tensor_buffer(all), counts, soon())
        .wait();
    return all;
  }

  const parallel::Mesh& mesh_;
  const parallel::ModelPart part_;
  const TextOptions options_;
  comm::Group world_;
  const parallel::schedule::Deal pass_;
  parallel::pipeline::Runner runner_;
  std::optional<bool> remembers_;
};

}  // namespace

ModelInParts load_in_parts(const parallel::Mesh& mesh, const fs::path& run,
                           const PartOptions& options) {
  const auto config = comm::from_rank_0(
      mesh.world(), [&] { return huggingface_config_in(run); }, Deadline::after(options.timeout));
  if (!config.empty()) return load_huggingface_in_parts(mesh, run, config, options);

  checkpoint::SharedReader saved(mesh.world(), run);
  ModelInParts made;
  made.description = checkpoint::description_in(saved.state(), run);
  checkpoint::require_language_model(made.description, run);
  const auto whole = checkpoint::draw_described_model(
      made.description,
      hollowed({.device = options.device, .dtype = device::dtype_named(made.description.dtype)}));
  saved.on_rank_0([&](const checkpoint::OpenCheckpoint& opened) {
    checkpoint::require_same_model(opened, whole);
  });
  take_cut(made, cut_hollow(whole, mesh, options));
  take_values(saved, made.part);
  return made;
}

TaskModelInParts load_in_parts(const parallel::Mesh& mesh, const task::Task& task,
                               torch::Dtype dtype, const fs::path& run,
                               const PartOptions& options) {
  checkpoint::SharedReader saved(mesh.world(), run);
  const auto whole = hollow_model(task, {.device = options.device, .dtype = dtype});
  TaskModelInParts made;
  saved.on_rank_0([&](const checkpoint::OpenCheckpoint& opened) {
    checkpoint::require_same_model(opened, whole);
    made.path = opened.path();
  });
  made.part = cut_hollow(whole, mesh, options).part;
  take_values(saved, made.part);
  return made;
}

using parallel::pipeline::StageModel;
using parallel::pipeline::StageWork;

StageWork forward_alone(const StageModel& stage,
                        std::function<task::Values(int micro_batch)> inputs) {
  StageWork work;
  work.inputs = std::move(inputs);
  work.forward = [&stage](int chunk, int /*micro_batch*/, const task::Values& values) {
    return task::run_units(stage.pieces[static_cast<std::size_t>(chunk)], values);
  };
  return work;
}

Through through_stages(const parallel::Mesh& mesh, const StageModel& stage,
                       parallel::pipeline::Runner& runner, DealChunks deal) {
  const auto& place = mesh.place();
  return {.part = mesh.shape().even() ? place.replica : 0,
          .counts = place.tensor == 0,
          .run = [&stage, &runner, deal = std::move(deal)](std::int64_t first, std::int64_t last,
                                                           const Through::Inputs& inputs,
                                                           const Through::Take& take) {
            const std::vector<std::int64_t> chunks(static_cast<std::size_t>(last - first), 1);
            runner.run_forward(
                deal(chunks), forward_alone(stage, [&](int i) { return inputs(first + i); }),
                [&](int i, const task::Values& outputs) { take(first + i, outputs); });
          }};
}

std::shared_ptr<Foretelling> foretold_in_parts(const parallel::Mesh& mesh, parallel::ModelPart part,
                                               const TextOptions& options) {
  return std::make_shared<InParts>(mesh, std::move(part), options);
}

}  // namespace bimetal::predict
