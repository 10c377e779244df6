#include "golden/random_jobs.h"

#include <algorithm>
#include <initializer_list>
#include <numeric>
#include <random>
#include <set>

#include "bimetal/job/job_keys.h"
#include "bimetal/job/worker_spec.h"
#include "unit/data/text/token_files.h"

namespace bimetal::golden {
namespace {

constexpr int most_ranks = 6;

class Dice {
 public:
  explicit Dice(std::uint64_t seed) : random_(seed) {}

  std::int64_t below(std::int64_t bound) {
    return static_cast<std::int64_t>(random_() % static_cast<std::uint64_t>(bound));
  }
  bool chance(int percent) { return below(100) < percent; }
  template <typename Value>
  Value of(std::initializer_list<Value> values) {
    return values.begin()[below(static_cast<std::int64_t>(values.size()))];
  }
  std::string of(std::initializer_list<const char*> values) {
    return values.begin()[below(static_cast<std::int64_t>(values.size()))];
  }
  /// At least one of them above 0.
  std::vector<double> weights(std::size_t count, bool zeros = true) {
    std::vector<double> drawn(count);
    for (auto& weight : drawn) weight = static_cast<double>(below(4) + (zeros ? 0 : 1));
    auto& one = drawn[static_cast<std::size_t>(below(static_cast<std::int64_t>(count)))];
    one = std::max(one, 1.0);
    return drawn;
  }

 private:
  std::mt19937_64 random_;
};

bool is_language(const job::JobConfig& job) {
  return job.data.name == "tokens";
}

void draw_model(Dice& dice, const RandomData& data, job::JobConfig& job) {
  auto& model = job.model;
  if (dice.chance(60)) {
    model.name = dice.of({"gpt2", "llama"});
    model.layers = dice.of({2, 2, 3, 4});
    model.width = 24;
    model.heads = dice.of({3, 4, 6});
    const std::int64_t fewer = model.heads == 4 ? 2 : 3;
    if (model.name == "llama") model.kv_heads = dice.of({model.heads, fewer});
    model.context = 16;
    model.dropout = dice.of({0.0, 0.1});
    job.data.name = "tokens";
    job.data.path = data.tokens().string();
    job.data.documents = dice.of({"join", "separate"});
    job.data.block = dice.of({0, 8});
    job.train.global_batch = dice.of({7, 10, 12});
    return;
  }
  model.name = dice.of({"linear", "mlp", "cnn", "cnn", "resnet18"});
  if (model.name != "linear") model.hidden = model.name == "cnn" ? 10 : 32;
  if (model.name == "resnet18" && dice.chance(50)) {
    model.hidden = 8;
    model.norm = "batch";
    model.norm_group = 4;
  }
  job.data.path = data.images().string();
  job.train.global_batch = model.norm == "batch" ? 20 : dice.of({13, 20, 32});
  job.data.augment = dice.chance(20);
  if (dice.chance(20)) job.data.bootstrap_seed = 5;
}

// Adam has an epsilon beside which gradients do not count that are 0 but for rounding: those of
// keys' biases.
void draw_optimizer(Dice& dice, job::TrainConfig& train) {
  train.optimizer = dice.of({"sgd", "sgd", "adam", "adamw", "adamw", "lars", "lamb"});
  train.epsilon = 1e-3;
  train.learning_rate = train.optimizer == "sgd" ? 0.05 : train.optimizer == "lars" ? 0.2 : 2e-3;
  if (train.optimizer == "lars") train.trust_coefficient = 0.1;
  train.momentum = dice.of({0.0, 0.9});
  train.weight_decay = dice.of({0.0, 0.1});
  train.decay_on = dice.of({"all", "matrices"});
  if (dice.chance(30)) train.clip_norm = dice.of({0.05, 0.5});
  if (dice.chance(15)) train.clip_value = 0.01;
  train.schedule = dice.of({"constant", "linear", "cosine"});
  train.warmup_steps = dice.of({0, 3});
}

/// By one worker, all of whose steps are whole.
Phase draw_learnt(Dice& dice, const RandomData& data) {
  Phase phase;
  auto& job = phase.job;
  draw_model(dice, data, job);
  draw_optimizer(dice, job.train);
  job.train.seed = static_cast<std::uint64_t>(1 + dice.below(1000));
  job.train.dtype = "float64";
  job.train.epochs = 3;
  job.train.evaluate = dice.chance(30);
  job.train.micro_batch = 1000;
  job.parallel.balance = balance::Policy::Equal;
  job.zero.offload_path = std::filesystem::temp_directory_path().string();
  phase.until = 3 + dice.below(5);
  return phase;
}

/// Units at which all of `pieces` but the first begin; none: by cost.
std::vector<std::int64_t> draw_cuts(Dice& dice, std::int64_t pieces, std::int64_t units) {
  std::set<std::int64_t> cuts;
  if (dice.chance(40)) return {};
  while (static_cast<std::int64_t>(cuts.size()) < pieces - 1) {
    cuts.insert(1 + dice.below(units - 1));
  }
  return {cuts.begin(), cuts.end()};
}

struct Replicas {
  std::vector<std::int64_t> of_stage;
  bool uneven = false;
};

Replicas draw_replicas(Dice& dice, job::MeshConfig& mesh) {
  const auto stages = static_cast<std::size_t>(mesh.stages);
  Replicas replicas{std::vector<std::int64_t>(stages, dice.of({1, 1, 2}))};
  if (stages > 1 && dice.chance(25)) {
    for (auto& count : replicas.of_stage) count = 1 + dice.below(2);
    mesh.stage_replicas = replicas.of_stage;
    replicas.uneven = std::ranges::min(replicas.of_stage) != std::ranges::max(replicas.of_stage);
  } else if (!mesh.stage_tensor.empty() || dice.chance(50)) {  // interleaved hangs on it, too
    mesh.replicas = replicas.of_stage.front();
  }
  return replicas;
}

std::vector<std::int64_t> draw_parts(Dice& dice, job::MeshConfig& mesh) {
  const auto stages = static_cast<std::size_t>(mesh.stages);
  mesh.tensor = dice.of({2, 2, 3});
  std::vector<std::int64_t> parts(stages, mesh.tensor);
  if (stages > 1 && dice.chance(30)) {
    for (auto& ranks : parts) ranks = 1 + dice.below(2);
    parts[static_cast<std::size_t>(dice.below(static_cast<std::int64_t>(stages)))] = 2;
    mesh.tensor = 2;
    mesh.stage_tensor = parts;
  }
  if (dice.chance(50)) {
    mesh.tensor_weights = dice.weights(static_cast<std::size_t>(mesh.tensor), false);
  }
  mesh.sequence_parallel = dice.chance(30);
  return parts;
}

void draw_stages(Dice& dice, const job::JobConfig& alone, job::MeshConfig& mesh) {
  const auto units =
      static_cast<std::int64_t>(train::test::task_of(alone)->make_model().units.size());
  mesh.stages = std::min<std::int64_t>(dice.of({2, 2, 3}), units);
  mesh.schedule = dice.of({"gpipe", "1f1b", "zero_bubble", "interleaved"});
  if (mesh.stages * mesh.chunks > units) mesh.schedule = "1f1b";
  const bool interleaved = mesh.schedule == "interleaved";  // in rounds
  mesh.micro_batches = interleaved ? mesh.stages * dice.below(3) : dice.below(5);
  mesh.cuts = draw_cuts(dice, mesh.stages * (interleaved ? mesh.chunks : 1), units);
}

/// Returns how many replicas a stage has.
std::size_t draw_mesh(Dice& dice, Phase& phase, bool staged, bool parted) {
  auto& mesh = phase.job.mesh;
  if (staged) draw_stages(dice, phase.job, mesh);
  std::vector<std::int64_t> parts(static_cast<std::size_t>(mesh.stages), 1);
  if (parted) parts = draw_parts(dice, mesh);
  const auto replicas = draw_replicas(dice, mesh);
  phase.ranks = static_cast<int>(
      std::inner_product(parts.begin(), parts.end(), replicas.of_stage.begin(), std::int64_t{0}));
  if (dice.chance(30)) {
    const bool own_parts = !mesh.stage_tensor.empty() && replicas.of_stage.front() > 1;
    const bool by_rank = replicas.uneven || own_parts;
    const auto count = by_rank ? phase.ranks : static_cast<int>(replicas.of_stage.front());
    phase.job.parallel.balance = balance::Policy::Fixed;
    phase.job.parallel.weights = dice.weights(static_cast<std::size_t>(count), !by_rank);
  }
  return static_cast<std::size_t>(replicas.of_stage.front());
}

void draw_shards(Dice& dice, Phase& phase, std::size_t owners) {
  auto& zero = phase.job.zero;
  zero.level = 1 + dice.below(3);
  zero.shards = dice.of({"memory", "speed", "equal"});
  if (dice.chance(40)) zero.weights = dice.weights(owners);
  if (dice.chance(30)) zero.offload_optimizer = dice.of({"host", "disk"});
  if (dice.chance(30)) zero.offload_parameters = dice.of({"host", "disk"});
  if (dice.chance(20)) zero.copies = 2;
  if (dice.chance(30)) zero.keep_below = 64;
  if (dice.chance(30)) zero.update = "backward";
  if (dice.chance(20)) {
    for (int rank = 0; rank < phase.ranks; ++rank) {
      phase.workers.push_back("cpu:threads=1,offload_optimizer=" +
                              dice.of({"none", "host", "disk"}));
    }
  }
}

void draw_servers(Dice& dice, Phase& phase) {
  phase.job.parallel.mode = "server";
  phase.job.servers.weigh = false;
  phase.job.servers.weights = dice.weights(static_cast<std::size_t>(1 + dice.below(2)), false);
  phase.ranks = static_cast<int>(1 + dice.below(3));
}

Phase draw_phase(Dice& dice, const Phase& alone) {
  Phase phase = alone;
  auto& job = phase.job;
  job.train.micro_batch = dice.of({0, 1, 3, 5});
  job.train.recompute = dice.of({"none", "none", "none", "all", "sqrt", "2"});
  job.parallel.bucket_mb = dice.of({0.002, 0.02, 25.0});
  job.parallel.balance = dice.of({balance::Policy::Equal, balance::Policy::Auto});
  const auto strategy = dice.below(100);
  std::size_t replicas = 1;
  if (strategy < 10) {
    draw_servers(dice, phase);
  } else if (strategy < 40) {
    phase.ranks = static_cast<int>(1 + dice.below(4));
    replicas = static_cast<std::size_t>(phase.ranks);
    if (dice.chance(50)) {
      job.parallel.balance = balance::Policy::Fixed;
      job.parallel.weights = dice.weights(replicas);
    }
  } else {
    const bool parted = is_language(job) && dice.chance(55);
    replicas = draw_mesh(dice, phase, !parted || dice.chance(60), parted);
  }
  if (strategy >= 20 && dice.chance(50)) draw_shards(dice, phase, replicas);
  return phase;
}

bool is_possible(const Phase& phase) {
  std::vector<job::WorkerSpec> workers;
  for (const auto& spec : phase.workers) workers.push_back(job::parse_worker_spec(spec));
  auto job = phase.job;
  job.checkpoint.dir = "anywhere";
  return phase.ranks <= most_ranks && job::is_possible(job, workers);
}

/// The tolerance for sums in float64, for sums in float32, and for data that ranks send each other
/// with 8 to 11 bits and the rest of it with the next step.
constexpr double kExact = 1e-12, kSingle = 1e-3, kShort = 5e-2;

/// Draws the types in which gradients, parameters and activations are summed and sent.
void draw_sums(Dice& dice, RandomJob& job) {
  job.tolerance = kExact;
  if (dice.chance(70)) return;
  job.tolerance = kSingle;
  job.alone.job.train.dtype = "float32";
  for (auto& phase : job.phases) {
    phase.job.train.dtype = "float32";
    auto shorter = phase;
    auto& compression = shorter.job.compression;
    compression.links = "all";
    const auto scheme = dice.of({"float16", "bfloat16"});
    (shorter.job.mesh.stages > 1 ? compression.activations : compression.gradients) = scheme;
    const bool servers = shorter.job.parallel.mode == "server";
    if (servers) compression.parameters = dice.of({"none", "float16"});
    if (!is_possible(shorter) || dice.chance(30)) continue;
    phase = shorter;
    job.tolerance = kShort;
  }
}

}  // namespace

RandomData::RandomData() {
  data::test::TokenFileParts parts;
  parts.vocabulary = 24;
  std::mt19937 random(3);
  std::uint32_t token = 3;
  for (std::uint32_t i = 0; i < 417; ++i) {
    parts.tokens.push_back(token);
    token = static_cast<std::uint32_t>((5 * token + 1 + random() % 3) % parts.vocabulary);
    if (random() % 20 == 0) parts.ends.push_back(i + 1);
  }
  if (parts.ends.empty() || parts.ends.back() != 417) parts.ends.push_back(417);
  const auto bytes = data::test::token_bytes(parts);
  for (const auto* name : {"train.tokens", "test.tokens"}) {
    test::put_contents(tokens_ / name, {bytes.begin(), bytes.end()});
  }
}

RandomJob draw_job(std::uint64_t seed, const RandomData& data) {
  Dice dice(seed);
  RandomJob job{.seed = seed, .alone = draw_learnt(dice, data), .phases = {}};
  const auto steps = job.alone.until;
  const auto phases = dice.of({1, 1, 2, 2, 3});
  for (int number = 1; number <= phases; ++number) {
    auto phase = draw_phase(dice, job.alone);
    while (!is_possible(phase)) phase = draw_phase(dice, job.alone);
    phase.until = number == phases ? steps : std::max<std::int64_t>(1, steps * number / phases);
    job.phases.push_back(std::move(phase));
  }
  Dice of_sums(seed + 1'000'000'007);  // beside the other draws, which stay what they are
  draw_sums(of_sums, job);
  return job;
}

}  // namespace bimetal::golden
