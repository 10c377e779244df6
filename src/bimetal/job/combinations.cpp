#include <algorithm>
#include <string_view>

#include "bimetal/base/error.h"
#include "bimetal/job/asked.h"
#include "bimetal/job/job_keys.h"
#include "bimetal/job/worker_spec.h"

namespace bimetal::job {
namespace {

constexpr Combination kImpossible[] = {
    {[](const Asked& asked) { return asked.low && asked.job.train.dtype == "float64"; },
     "train.precision does not go with train.dtype = \"float64\": it stands for computing in less "
     "than float32 what is kept in float32; leave one of them out"},
    {[](const Asked& asked) { return asked.float16 && asked.servers(); },
     "train.precision = \"float16\" does not go with parallel.mode = \"server\": its loss scale is "
     "agreed by all ranks in every step, and a server's workers do not wait for each other; take "
     "\"bfloat16\", or parallel.mode = \"all_reduce\""},
    {[](const Asked& asked) {
       auto ours = asked.job.model;
       ours.name = ModelConfig().name;
       ours.python.clear();
       ours.compile = false;
       return !asked.job.model.python.empty() && ours != ModelConfig();
     },
     "model.python brings a model of its own: leave the sizes, norm, dropout and weights of "
     "Bimetal's models out; what it needs it may take from its argument, the job"},
    {[](const Asked& asked) { return asked.job.model.compile && asked.job.model.python.empty(); },
     "model.compile compiles units that are written in Python (torch.compile): set model.python, "
     "or leave it out; Bimetal's own models are not compiled"},
    {[](const Asked& asked) {
       const auto& schedule = asked.job.mesh.schedule;
       return asked.job.model.compile && asked.stages() &&
              (schedule == "zero_bubble" || schedule == "auto");
     },
     "model.compile does not go with mesh.schedule = \"zero_bubble\", nor with \"auto\", which may "
     "choose it: a compiled unit has one backward, for inputs and weights at once; take \"1f1b\""},
    {[](const Asked& asked) {
       auto ours = asked.job.data;
       const DataConfig defaults;
       ours.name = defaults.name;
       ours.path = defaults.path;
       ours.validation = defaults.validation;
       ours.validation_seed = defaults.validation_seed;
       return !asked.job.model.python.empty() && ours != defaults;
     },
     "model.python brings data of its own: leave the keys of [data] out, but for validation, and "
     "name and path, which it may look at"},
    {[](const Asked& asked) {
       const auto& mesh = asked.job.mesh;
       return asked.job.train.graphs &&
              (asked.job.zero.level > 0 || asked.servers() || mesh.stages != 1 || mesh.tensor != 1);
     },
     "train.graphs is for workers that have the whole model and sum its gradients behind backward: "
     "it does not go with zero.level, [mesh] and parallel.mode = \"server\", where passes wait for "
     "other workers in their midst; leave it out"},
    {[](const Asked& asked) {
       return asked.job.train.graphs &&
              (asked.job.model.dropout > 0 || asked.job.train.recompute != "none");
     },
     "train.graphs does not go with model.dropout and train.recompute: what is drawn for each "
     "sample would be the same in each step, and what it was drawn from is kept by the host; set "
     "model.dropout = 0 and train.recompute = \"none\", or leave train.graphs out"},
    {[](const Asked& asked) { return asked.job.train.graphs && !asked.job.model.python.empty(); },
     "train.graphs does not go with model.python: what Python does beside launching kernels would "
     "be left out of all steps but the first; take model.compile, or leave it out"},
    {[](const Asked& asked) { return asked.job.data.validation > 0 && asked.servers(); },
     "data.validation does not go with parallel.mode = \"server\": its workers evaluate with one "
     "data set yet; take parallel.mode = \"all_reduce\""},
    {[](const Asked& asked) {
       return asked.job.checkpoint.keep_best &&
              (asked.job.data.validation == 0 || !asked.job.train.evaluate);
     },
     "checkpoint.keep_best chooses by data that are held out of training, which the test data are "
     "not: set data.validation (0.1 is usual) and train.evaluate = true"},
    {[](const Asked& asked) { return asked.job.model.norm == "batch" && asked.servers(); },
     "model.norm = \"batch\" does not go with parallel.mode = \"server\": workers that do not wait "
     "for each other have no running statistics in common; take \"group\", which looks at one "
     "sample alone, or parallel.mode = \"all_reduce\""},
    {[](const Asked& asked) {
       return asked.job.model.norm == "batch" &&
              asked.job.model.norm_group > asked.job.train.global_batch;
     },
     "model.norm_group is larger than train.global_batch: so many samples are normalised with each "
     "other, and a step must have them"},
    {[](const Asked& asked) { return asked.float16 && asked.job.compression.gradients != "none"; },
     "train.precision = \"float16\" does not go with compression.gradients: what is shortened is "
     "remembered for the next step, and an overflow, which skips one step, would stay in that "
     "memory; take \"bfloat16\", or compression.gradients = \"none\""},
    {[](const Asked& asked) {
       return asked.job.train.clip_norm > 0 && asked.servers() &&
              asked.job.servers.weights.size() > 1;
     },
     "train.clip_norm does not go with more than one parameter server: each sees the norm of its "
     "own shard alone; take servers.count = 1, train.clip_value, or parallel.mode = "
     "\"all_reduce\""},
    {[](const Asked& asked) {
       const auto& train = asked.job.train;
       return train.clip_norm + train.clip_value > 0 && !asked.servers() &&
              asked.job.compression.gradients == "topk" && train.optimizer == "sgd" &&
              train.momentum > 0;
     },
     "train.clip_norm and clip_value do not go with the momentum of sgd and compression.gradients "
     "= \"topk\": that momentum is added before the exchange, so that what would be clipped is no "
     "gradient any more; take train.momentum = 0, another optimizer, or another compression"},
    {[](const Asked& asked) { return asked.job.zero.level > 0 && asked.servers(); },
     "zero.level does not go with parallel.mode = \"server\": parameter servers keep parameters "
     "and the optimizer's state in shards of their own; take servers.count, or parallel.mode = "
     "\"all_reduce\""},
    {[](const Asked& asked) {
       return asked.job.zero.level > 0 && asked.job.compression.gradients != "none";
     },
     "zero.level does not go with compression.gradients: what is not sent would have to be "
     "remembered whole by every rank, which is what shards are to save; leave one of them out"},
    {[](const Asked& asked) {
       const auto& optimizer = asked.job.train.optimizer;
       return asked.job.zero.level > 0 && (optimizer == "lars" || optimizer == "lamb");
     },
     "zero.level does not go with train.optimizer = \"lars\" or \"lamb\", which need the norms of "
     "whole tensors where a rank keeps parts of them; take \"sgd\", \"adam\" or \"adamw\""},
    {[](const Asked& asked) {
       return asked.job.zero.level == 0 && asked.job.zero.offload_optimizer != "none";
     },
     "zero.offload_optimizer (DeepSpeed's offload_optimizer) moves the state of a rank's shard, so "
     "that it needs zero.level of at least 1 (DeepSpeed's stage)"},
    {[](const Asked& asked) {
       return asked.job.zero.level < 3 && asked.job.zero.offload_parameters != "none";
     },
     "zero.offload_parameters (DeepSpeed's offload_param) moves the parameters of a rank's shard: "
     "it needs zero.level = 3 (DeepSpeed's stage)"},
    {[](const Asked& asked) {
       const auto& optimizer = asked.job.train.optimizer;
       return asked.offloads("host", "disk") && optimizer != "adam" && optimizer != "adamw";
     },
     "zero.offload_optimizer and offload_parameters (DeepSpeed's offload_optimizer and "
     "offload_param) go with train.optimizer = \"adam\" or \"adamw\", whose updates run on the "
     "CPU; take one of these, or \"none\""},
    {[](const Asked& asked) {
       return asked.offloads("disk", "disk") && asked.job.zero.offload_path.empty();
     },
     "zero.offload_optimizer and offload_parameters = \"disk\" need zero.offload_path: a folder on "
     "a fast disk"},
    {[](const Asked& asked) { return asked.job.zero.copies > 1 && asked.job.zero.level == 0; },
     "zero.copies = 2 needs zero.level of at least 1: without shards every rank has all there is, "
     "and its loss takes nothing away but the steps since the last checkpoint"},
    {[](const Asked& asked) {
       return asked.job.zero.copies > 1 && asked.job.checkpoint.dir.empty();
     },
     "zero.copies = 2 needs checkpoint.dir: there is saved what the copies have kept"},
    {[](const Asked& asked) { return asked.job.zero.copies > 1 && asked.offloads("host", "disk"); },
     "zero.copies = 2 does not go with zero.offload_optimizer and offload_parameters: copies in "
     "files and in the host's memory are not kept yet; leave one of them out"},
    {[](const Asked& asked) { return asked.job.zero.copies > 1 && asked.stages(); },
     "zero.copies = 2 does not go with mesh.stages: of a lost rank its stage's buffers and what "
     "its replicas share would have to be found again, too, which is not done yet; leave one of "
     "them out"},
    {[](const Asked& asked) { return asked.job.zero.copies > 1 && asked.in_parts(); },
     "zero.copies = 2 does not go with mesh.tensor: parts of tensors are not saved from copies "
     "yet; leave one of them out"},
    {[](const Asked& asked) { return asked.elastic() && asked.job.parallel.mode == "server"; },
     "elastic.min_workers is for parallel.mode = \"all_reduce\""},
    {[](const Asked& asked) {
       return asked.elastic() &&
              !(asked.job.parallel.weights.empty() && asked.job.zero.weights.empty());
     },
     "elastic.min_workers does not go with one number for each worker in parallel.balance or "
     "zero.shards: take \"auto\" and \"memory\""},
    {[](const Asked& asked) {
       const bool cut = asked.stages() || asked.in_parts() || asked.open();
       return asked.elastic() && (asked.job.zero.level > 0 || cut) &&
              asked.job.checkpoint.dir.empty();
     },
     "elastic.min_workers with zero.level or [mesh] needs checkpoint.dir, by which shards and "
     "parts go to newcomers"},
    {[](const Asked& asked) { return asked.updates_in_backward() && asked.job.zero.level < 3; },
     "zero.update = \"backward\" needs zero.level = 3: below it ranks compute with the very memory "
     "that an update changes, and backward still wants the old values"},
    {[](const Asked& asked) {
       return asked.updates_in_backward() &&
              asked.job.train.clip_norm + asked.job.train.clip_value > 0;
     },
     "zero.update = \"backward\" does not go with train.clip_norm and clip_value: gradients are "
     "clipped once all of a step's are there, and by then those of the last units have been used "
     "and dropped; take zero.update = \"step\""},
    {[](const Asked& asked) { return asked.updates_in_backward() && asked.float16; },
     "zero.update = \"backward\" does not go with train.precision = \"float16\": a step whose "
     "gradients overflow is skipped, which is known only behind the last of them; take "
     "\"bfloat16\", or zero.update = \"step\""},
    {[](const Asked& asked) { return asked.updates_in_backward() && asked.job.zero.copies > 1; },
     "zero.update = \"backward\" does not go with zero.copies = 2: a rank that is lost in the "
     "middle of backward would leave copies of two steps; leave one of them out"},
    {[](const Asked& asked) { return asked.updates_in_backward() && asked.stages(); },
     "zero.update = \"backward\" does not go with mesh.stages: micro-batches are under way in "
     "several stages at once, and need the parameters of one step; leave one of them out"},
    {[](const Asked& asked) {
       return asked.updates_in_backward() && asked.job.train.recompute == "auto";
     },
     "zero.update = \"backward\" does not go with train.recompute = \"auto\", which repeats a step "
     "that has run out of memory: a part of it may have been applied; take \"all\", \"sqrt\" or "
     "\"none\""},
    {[](const Asked& asked) { return asked.stages() && asked.servers(); },
     "mesh.stages does not go with parallel.mode = \"server\": workers of parameter servers "
     "compute with the whole model, each at its own time; take parallel.mode = \"all_reduce\""},
    {[](const Asked& asked) {
       return (asked.in_parts() || asked.job.mesh.tensor == kAutoTensor) && asked.servers();
     },
     "mesh.tensor does not go with parallel.mode = \"server\": workers of parameter servers "
     "compute with the whole model, each at its own time; take parallel.mode = \"all_reduce\""},
    {[](const Asked& asked) {
       return asked.in_parts() && asked.job.mesh.stages == 1 && asked.job.zero.level > 1 &&
              asked.job.mesh.tensor_parts == "speed";
     },
     "mesh.tensor_weights = \"speed\" does not go with zero.level 2 and 3, at which no steps are "
     "measured before training; take \"equal\" or numbers, or zero.level = 1"},
    {[](const Asked& asked) {
       const auto& optimizer = asked.job.train.optimizer;
       return asked.in_parts() && (optimizer == "lars" || optimizer == "lamb");
     },
     "mesh.tensor does not go with train.optimizer = \"lars\" or \"lamb\", which need the norms of "
     "whole tensors where a rank has parts of them; take \"sgd\", \"adam\" or \"adamw\""},
    {[](const Asked& asked) {
       return asked.in_parts() && asked.job.compression.gradients != "none";
     },
     "mesh.tensor does not go with compression.gradients: what is not sent would be remembered by "
     "part, and lost on another mesh; leave one of them out"},
    {[](const Asked& asked) { return asked.in_parts() && asked.job.parallel.exact == "relaxed"; },
     "mesh.tensor does not go with parallel.exact = \"relaxed\": the ranks that share a replica's "
     "tensors must draw the same random numbers; take \"strict\""},
    {[](const Asked& asked) {
       const auto& mesh = asked.job.mesh;
       return asked.in_parts() && asked.job.train.deterministic && mesh.tensor_parts == "speed";
     },
     "train.deterministic does not go with mesh.tensor_weights = \"speed\": parts that follow from "
     "measured speed may be others in the next run; take \"equal\" or numbers"},
    {[](const Asked& asked) {
       return asked.job.mesh.tensor == kAutoTensor && asked.job.train.deterministic;
     },
     "train.deterministic does not go with mesh.tensor = \"auto\": what is chosen follows from "
     "measured speed, and may be another in the next run; give mesh.tensor a number"},
    {[](const Asked& asked) {
       return asked.job.mesh.sequence_parallel && asked.job.mesh.tensor == 1;
     },
     "mesh.sequence_parallel needs mesh.tensor of at least 2, or \"auto\": it cuts sequences where "
     "ranks that share a replica's tensors would all keep the same; set mesh.tensor, or leave it "
     "out"},
    {[](const Asked& asked) {
       return asked.job.mesh.sequence_parallel && asked.job.zero.level > 0;
     },
     "mesh.sequence_parallel does not go with zero.level: what is whole on all tensor ranks gets "
     "its gradients from each of them, and shards have let go of them by then; leave one of them "
     "out"},
    {[](const Asked& asked) {
       const auto block = asked.job.data.block;
       return asked.job.mesh.sequence_parallel && block > 0 && block < asked.job.mesh.tensor;
     },
     "mesh.sequence_parallel cuts sequences into mesh.tensor parts of whole tokens, and data.block "
     "is shorter: take a data.block of at least mesh.tensor, or fewer ranks in mesh.tensor"},
    // If each stage has its own number of parts, stages may differ in precision: the ranks see to
    // that.
    {[](const Asked& asked) { return asked.in_parts() && !asked.parts_uneven() && asked.unlike; },
     "mesh.tensor needs one precision on all workers, since they add up what they compute: leave "
     "precision out of --worker, and set train.precision"},
    {[](const Asked& asked) {
       return asked.job.mesh.stages > 1 && asked.job.compression.gradients != "none";
     },
     "mesh.stages does not go with compression.gradients: what was not sent would have to be "
     "remembered for other cuts; leave one of them out"},
    {[](const Asked& asked) {
       return asked.job.compression.activations != "none" && !asked.stages();
     },
     "compression.activations shortens what goes from stage to stage, and this job has one: set "
     "mesh.stages, to \"auto\" or a number of at least 2, or leave it out"},
    {[](const Asked& asked) {
       return asked.stages() && asked.job.zero.level > 1 &&
              asked.job.mesh.schedule == "interleaved";
     },
     "mesh.schedule = \"interleaved\" does not go with zero.level 2 and 3: each of a stage's "
     "chunks would send gradients of all of them; take \"1f1b\", or zero.level = 1"},
    {[](const Asked& asked) {
       const auto& mesh = asked.job.mesh;
       return mesh.stages > 1 && mesh.tensor > 1 && asked.job.train.recompute == "auto";
     },
     "mesh.stages with mesh.tensor does not go with train.recompute = \"auto\": all that have "
     "parts of a tensor would have to compute again together; take \"all\", \"sqrt\" or \"none\""},
    {[](const Asked& asked) {
       return asked.job.mesh.stages > 1 && asked.job.model.norm == "batch";
     },
     "mesh.stages does not go with model.norm = \"batch\": running statistics live with each "
     "stage, and are not merged yet; take \"group\""},
    {[](const Asked& asked) {
       const auto& mesh = asked.job.mesh;
       return asked.stages() && asked.job.train.deterministic && mesh.cuts.empty();
     },
     "train.deterministic with mesh.stages needs mesh.cuts: cuts that follow from measured speed "
     "may be others in the next run"},
    {[](const Asked& asked) {
       return asked.stages() && asked.job.mesh.micro_batches > asked.job.train.global_batch;
     },
     "mesh.micro_batches is more than train.global_batch: so many pieces of a step would have no "
     "sample; take train.global_batch at most, divided by the replicas of a stage"},
    {[](const Asked& asked) { return asked.open() && !asked.job.mesh.cuts.empty(); },
     "mesh.stages and mesh.tensor = \"auto\" choose mesh.cuts as well: leave them out, or give "
     "both keys a number"},
    {[](const Asked& asked) { return !asked.open() && asked.job.mesh.schedule == kAutoSchedule; },
     "mesh.schedule = \"auto\" is for meshes of which mesh.stages or mesh.tensor is \"auto\", too: "
     "name one, or leave it out"},
    {[](const Asked& asked) { return asked.open() && !asked.job.mesh.stage_replicas.empty(); },
     "mesh.stages and mesh.tensor = \"auto\" do not go with a number of mesh.replicas for each "
     "stage: give both keys a number, or leave mesh.replicas out"},
    {[](const Asked& asked) { return asked.open() && !asked.job.mesh.stage_tensor.empty(); },
     "mesh.stages = \"auto\" does not go with a number in mesh.tensor for each stage: give "
     "mesh.stages a number, or mesh.tensor one"},
    {[](const Asked& asked) { return asked.job.mesh.sequence_parallel && asked.parts_uneven(); },
     "mesh.sequence_parallel does not go with a number in mesh.tensor for each stage: the parts of "
     "a sequence would have to be cut up anew from stage to stage; give mesh.tensor one number, or "
     "leave it out"},
    {[](const Asked& asked) { return asked.uneven() && asked.job.mesh.schedule == "interleaved"; },
     "mesh.schedule = \"interleaved\" does not go with replicas of their own number for each "
     "stage: its rounds have as many micro-batches as there are stages; take \"1f1b\""},
    {[](const Asked& asked) {
       return asked.parts_uneven() && asked.replicated() &&
              asked.job.mesh.schedule == "interleaved";
     },
     "mesh.schedule = \"interleaved\" does not go with a number in mesh.tensor for each stage and "
     "several replicas, which are one pipeline then, and its rounds have as many micro-batches as "
     "there are stages; take \"1f1b\", or mesh.replicas = 1"},
    {[](const Asked& asked) { return asked.uneven() && !asked.job.zero.weights.empty(); },
     "numbers in zero.shards do not go with replicas of their own number for each stage: give "
     "zero.shards a name"},
    {[](const Asked& asked) { return asked.open() && !asked.job.parallel.weights.empty(); },
     "mesh.stages and mesh.tensor = \"auto\" do not go with numbers in parallel.balance, of which "
     "how many there have to be depends on the mesh: take a name, or give both keys a number"},
    {[](const Asked& asked) { return asked.open() && !asked.job.zero.weights.empty(); },
     "mesh.stages and mesh.tensor = \"auto\" do not go with numbers in zero.shards, of which how "
     "many there have to be depends on the mesh: take a name, or give both keys a number"},
};

}  // namespace

void require_possible(const JobConfig& job, std::span<const WorkerSpec> workers) {
  const auto computes_in = [&](std::string_view precision) {
    if (workers.empty()) return job.train.precision == precision;
    return std::ranges::any_of(
        workers, [&](const WorkerSpec& worker) { return precision_of(job, worker) == precision; });
  };
  const bool float16 = computes_in("float16");
  const bool unlike = std::ranges::any_of(workers, [&](const WorkerSpec& worker) {
    return precision_of(job, worker) != job.train.precision;
  });
  const auto require = [&](const JobConfig& own) {
    const Asked asked{own, float16 || computes_in("bfloat16") || computes_in("tf32"), float16,
                      unlike};
    for (const auto& combination : kImpossible) {
      if (combination.asked(asked)) {
        throw Error(ErrorCode::Unsupported, std::string(combination.why));
      }
    }
  };
  if (workers.empty()) require(job);
  for (const auto& worker : workers) require(as_worker_has_it(job, worker));
}

bool is_possible(const JobConfig& job, std::span<const WorkerSpec> workers) {
  try {
    require_possible(job, workers);
  } catch (const Error&) {
    return false;
  }
  return true;
}

bool may_be_elastic(const JobConfig& job) {
  auto asked = job;
  asked.elastic.min_workers = 1;
  return is_possible(asked);
}

}  // namespace bimetal::job
