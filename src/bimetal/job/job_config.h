#pragma once
// The job file (TOML) as a value. Every key is listed here and in docs/job_file.md; unknown keys
// and wrong types are errors that give the line and the nearest valid name.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "bimetal/balance/balancer.h"

namespace bimetal::job {

struct ModelConfig {
  std::string name = "cnn";
  std::string python;    ///< "package.module:function" that makes the task; then name says nothing
  bool compile = false;  ///< units of such a task by torch.compile
  std::int64_t hidden = 0;       ///< width of the hidden layers; 0: the model's own
  std::string norm = "group";    ///< resnets: "group", or "batch"
  std::int64_t norm_group = 32;  ///< batch: samples that are normalised with each other
  // Language models; 0: that of the preset.
  std::int64_t layers = 0;
  std::int64_t width = 0;
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;
  std::int64_t context = 0;     ///< most tokens that it looks at
  std::int64_t vocabulary = 0;  ///< 0: the data's
  double dropout = 0;
  std::string weights;  ///< folder of Hugging Face's kind that training starts from
  bool operator==(const ModelConfig&) const = default;
};

struct DataConfig {
  std::string name = "fashion-mnist";
  std::string path;                   ///< folder or URL; empty: the usual places
  bool send = true;                   ///< ranks that have no copy are sent one
  double send_max_gb = 10.0;          ///< GiB; no more than that is sent unasked
  std::uint64_t bootstrap_seed = 0;   ///< > 0: train on samples drawn with replacement
  std::int64_t image_size = 0;        ///< folders of images: height and width that they get
  bool augment = false;               ///< training images are cropped and flipped at random
  bool skip_broken = false;           ///< files that are no images are left out
  std::vector<double> mean, stddev;   ///< of images' channels; empty: the training set's
  std::int64_t block = 0;             ///< tokens: how many a sample has; 0: the model's context
  std::string documents = "join";     ///< tokens: "join", or "separate": blocks end where they end
  double validation = 0;              ///< part of the training samples that is held out
  std::uint64_t validation_seed = 1;  ///< which ones
  bool operator==(const DataConfig&) const = default;
};

struct TrainConfig {
  std::int64_t epochs = 1;
  std::int64_t steps = 0;             ///< > 0: stop after this many optimizer steps
  std::int64_t global_batch = 512;    ///< samples per optimizer step over all workers
  std::int64_t micro_batch = 0;       ///< most samples a device computes at once; 0: what suits it
  std::uint64_t seed = 1;             ///< below 2^63, TOML's largest whole number
  std::string dtype = "float32";      ///< "float32" or "float64"
  std::string precision = "float32";  ///< of the computation: a name of precision::Precision
  /// The memory format of images for convolutions: "contiguous", "channels_last", or "auto".
  std::string memory_format = "contiguous";
  double loss_scale = 0;                   ///< float16: 0 finds it out
  double loss_scale_initial = 65536;       ///< the scale that an automatic search begins with
  std::int64_t loss_scale_window = 2000;   ///< steps without an overflow after which it doubles
  std::int64_t loss_scale_hysteresis = 1;  ///< overflows until it is halved
  double loss_scale_min = 1;               ///< it does not fall below that
  std::string recompute = "none";       ///< "none", "all", "sqrt", "auto" or every how many units
  std::string check_memory = "refuse";  ///< for jobs that will not fit: "refuse", "warn" or
                                        ///< "off"
  bool deterministic = false;           ///< the same bits in every run, or an error
  bool graphs = false;                  ///< steps are launched as graphs of the device
  std::string optimizer = "sgd";        ///< "sgd", "adam", "adamw", "lars", "lamb"
  double learning_rate = 0.05;
  double momentum = 0.9;  ///< sgd, lars
  double weight_decay = 0.0;
  std::string decay_on = "all";          ///< or "matrices": not on biases and normalizations
  double clip_norm = 0;                  ///< most that the gradient's norm may be; 0: any
  double clip_value = 0;                 ///< most that one of its elements may be; 0: any
  std::int64_t base_batch = 0;           ///< > 0: learning_rate is for that many samples a step
  double beta1 = 0.9, beta2 = 0.999;     ///< adam, adamw, lamb
  double epsilon = 0.0;                  ///< likewise; 0: the optimizer's own
  double trust_coefficient = 0.001;      ///< lars
  std::int64_t warmup_steps = 0;         ///< over which the rate grows to learning_rate
  double warmup_from = 0;                ///< the rate that it grows from
  std::string warmup = "linear";         ///< how it grows: "linear" or "log"
  std::int64_t warmup_lag = 0;           ///< steps at warmup_from before it begins to grow
  std::string schedule = "constant";     ///< "constant", "linear" or "cosine"; optim/optimizers.h
  std::int64_t decay_steps = 0;          ///< the last step of the decay; 0: the job's
  double min_learning_rate_ratio = 0.0;  ///< the last rate as a part of learning_rate
  bool evaluate = true;                  ///< test accuracy at the end of each epoch
  bool operator==(const TrainConfig&) const = default;
};

struct ParallelConfig {
  std::string mode = "all_reduce";  ///< or "server": docs/parameter_server.md
  balance::Policy balance = balance::Policy::Auto;
  std::vector<double> weights;  ///< balance = [3, 1]; empty for the other policies
  double bucket_mb = 25.0;
  double timeout_s = 60.0;       ///< deadline of one step's communication
  std::string exact = "strict";  ///< "relaxed": models whose result hangs on the split may train
  bool operator==(const ParallelConfig&) const = default;
};

/// Parameter servers, for parallel.mode "server": docs/parameter_server.md.
struct ServersConfig {
  std::vector<double> weights = {1};  ///< one for each: a share of the parameters
  bool weigh = true;                  ///< they were counted only: bandwidth decides on the weights
  std::int64_t replicas = 1;          ///< 2: each part is kept by two servers
  std::string consistency = "sync";   ///< "sync", "async" or "bounded"
  std::int64_t staleness = 2;         ///< bounded: steps that a worker may be ahead
  std::string prefetch = "auto";      ///< async, bounded: a name of parallel::server::Prefetch
  bool staleness_aware = false;       ///< smaller steps along old gradients
  bool weight_prediction = true;      ///< workers get parameters as they will be
  std::int64_t max_not_finite = 10;   ///< so many dropped gradients end the job
  bool operator==(const ServersConfig&) const = default;
};

/// The place of parameters, gradients and the optimizer's state: docs/zero.md.
struct ZeroConfig {
  std::int64_t level = 0;         ///< 1: states, 2: and gradients, 3: and parameters are in shards
  std::string shards = "memory";  ///< by "memory", "speed", or "equal"
  std::vector<double> weights;    ///< shards = [3, 1]; empty for the names
  std::string offload_optimizer = "none";   ///< "none", "host" or "disk"
  std::string offload_parameters = "none";  ///< likewise
  std::string offload_path;                 ///< folder for "disk"
  std::int64_t copies = 1;                  ///< 2: each shard is on another rank, too
  std::int64_t keep_below = 0;              ///< level 3: smaller parameters stay whole; elements
  std::string update = "step";              ///< level 3: "step" updates all at its end; or
                                            ///< "backward"
  bool operator==(const ZeroConfig&) const = default;
};

/// Stages of a pipeline, replicas of each, and ranks among which tensors are cut: docs/pipeline.md.
struct MeshConfig {
  std::int64_t stages = 1;
  std::int64_t replicas = 0;  ///< of each stage; 0, "auto": as many as there are ranks for
  std::vector<std::int64_t> stage_replicas = {};  ///< or a number for each stage, in place of it
  std::int64_t tensor = 1;                        ///< ranks that have a replica's tensors in parts
  std::vector<std::int64_t> stage_tensor = {};  ///< or a number for each stage: tensor is the most
  std::vector<std::int64_t> cuts;  ///< units at which stages but the first begin; empty: by cost
  std::string tensor_parts = "equal";  ///< or "speed": how large these are
  std::vector<double> tensor_weights;  ///< or weights of those ranks, in place of it
  bool sequence_parallel = false;      ///< these ranks have sequences in parts, too
  std::string schedule = "1f1b";       ///< a name of parallel::schedule::Kind
  std::int64_t micro_batches = 0;      ///< of a step, per replica; 0: as train.micro_batch asks
  std::int64_t chunks = 2;             ///< interleaved: pieces of the model per stage
  bool operator==(const MeshConfig&) const = default;
};

/// Compression on the wire: docs/compression.md.
struct CompressionConfig {
  std::string gradients = "none";         ///< a name of comm::Scheme
  std::string parameters = "none";        ///< likewise, from parameter servers to workers
  std::string activations = "none";       ///< likewise, between stages, and their gradients
  std::string links = "between_islands";  ///< a name of comm::CompressedLinks
  double topk_density = 0.001;            ///< topk: share of elements that are sent
  std::int64_t topk_warmup_steps = 0;     ///< topk: over which the density falls to that
  std::int64_t powersgd_rank = 4;         ///< powersgd: columns of the factors
  bool operator==(const CompressionConfig&) const = default;
};

struct CheckpointConfig {
  std::string dir;  ///< empty: no checkpoints; where a file says nothing: runs/ and its name
  std::int64_t every_steps = 0;  ///< and at the ends of epochs and of the job; 0: only there
  double every_minutes = 5;      ///< and when so much time has passed since the last; 0: never
  std::int64_t keep = 2;         ///< newest ones kept
  bool keep_best = false;        ///< and the one that was best on the validation data
  bool operator==(const CheckpointConfig&) const = default;
};

struct ClusterConfig {
  std::vector<std::string> workers;  ///< local workers when no --worker is given
  double join_timeout_s = 60.0;
  bool operator==(const ClusterConfig&) const = default;
};

/// How the job goes on when workers come, leave or are lost: docs/elastic.md.
struct ElasticConfig {
  std::int64_t min_workers = 0;  ///< that go on; 0: 1 on several machines, and on one none do
  std::int64_t max_workers = 0;  ///< newcomers beyond that wait; 0: any number
  double patience_s = 60.0;      ///< wait for min_workers, or most members, to be there
  std::string keeper;            ///< machine that goes on with half of them, or "either"
  bool operator==(const ElasticConfig&) const = default;
};

struct FabricConfig {
  std::string transport = "auto";  ///< a name of comm::Transport
  double peer_timeout_s = 0;       ///< silence of a peer that ends the job; 0: as suits the path
  std::string islands = "auto";    ///< "auto" or "off": use vendor libraries where there are any
  bool operator==(const FabricConfig&) const = default;
};

/// The value of MonitorConfig::trackers for trackio, if rank 0's Python has it.
inline constexpr const char* kAutoTrackers = "auto";

struct MonitorConfig {
  std::string listen;           ///< ADDR:PORT of the monitor; empty: none
  std::string page = "auto";    ///< "on", "off", or on loopback where rank 0 has a terminal
  std::string tensorboard_dir;  ///< empty: no scalars for TensorBoard
  /// "trackio", "wandb", "mlflow", "tensorboard", each once; or kAutoTrackers alone.
  std::vector<std::string> trackers = {kAutoTrackers};
  bool tracker_checkpoints = false;  ///< trackers get checkpoints as artifacts
  bool operator==(const MonitorConfig&) const = default;
};

struct JobConfig {
  ModelConfig model = {};
  DataConfig data = {};
  TrainConfig train = {};
  ParallelConfig parallel = {};
  ServersConfig servers = {};
  ZeroConfig zero = {};
  MeshConfig mesh = {};
  CompressionConfig compression = {};
  CheckpointConfig checkpoint = {};
  ClusterConfig cluster = {};
  ElasticConfig elastic = {};
  FabricConfig fabric = {};
  MonitorConfig monitor = {};
  bool operator==(const JobConfig&) const = default;
};

/// How many samples of `job` are normalised with each other; 0: each is by itself.
std::int64_t sample_group(const JobConfig& job);

/// Reads `file` and then applies `overrides`, each "section.key=value" (value in TOML syntax; a
/// bare word is taken as a string). Errors are InvalidArgument "FILE:LINE: …", or "--set …: …" for
/// an override. A file that cannot be read is InvalidArgument, too.
JobConfig load_job(const std::filesystem::path& file,
                   const std::vector<std::string>& overrides = {});

/// The same from text, for jobs that came over the network; `origin` stands for the file name.
JobConfig parse_job(std::string_view toml, const std::string& origin,
                    const std::vector<std::string>& overrides = {});

/// Changes keys of a job that is there already, as `overrides` of load_job say. Errors: its.
void apply_overrides(JobConfig& job, const std::vector<std::string>& overrides);

/// Every key with its value, so that parse_job(to_toml(job)) == job: a launcher sends it to
/// machines that have no file.
std::string to_toml(const JobConfig& job);

/// Each key with its value as one line, "section.key=value": what --set takes.
std::set<std::string> keys_in(const JobConfig& job);

/// All of them as a JSON object of sections: whole numbers, numbers (always with a point or an
/// exponent) and texts keep their types.
std::string to_json(const JobConfig& job);

/// All valid keys, as "section.key", in the order of docs/job_file.md.
std::vector<std::string> job_key_names();

}  // namespace bimetal::job
