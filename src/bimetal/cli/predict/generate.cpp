#include "bimetal/predict/generate.h"

#include <fmt/format.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bimetal/base/deadline.h"
#include "bimetal/base/error.h"
#include "bimetal/base/wire_fields.h"
#include "bimetal/checkpoint/checkpoint.h"
#include "bimetal/checkpoint/huggingface.h"
#include "bimetal/cli/command.h"
#include "bimetal/cli/job_options.h"
#include "bimetal/cli/predict/mesh_of_use.h"
#include "bimetal/cli/predict/text_codec.h"
#include "bimetal/cli/rank/rank.h"
#include "bimetal/cli/start/run_job.h"
#include "bimetal/cli/terminal.h"
#include "bimetal/comm/exchange.h"
#include "bimetal/device/device.h"
#include "bimetal/job/worker_spec.h"
#include "bimetal/predict/mesh/model_in_parts.h"
#include "bimetal/serving/client.h"
#include "bimetal/train/replicas.h"

namespace bimetal::cli {
namespace {

namespace fs = std::filesystem;

constexpr const char* kGenerateExamples = R"(Examples:
  bimetal generate runs/gpt_text --prompt 'The import statement' --tokens 300
  bimetal generate runs/gpt/step-00001000 --prompt 'Once' --temperature 0.8 --top-k 40 --seed 7
  bimetal generate models/gpt2 --prompt 'Once upon a time' --temperature 0

  bimetal generate runs/gpt --prompt 'Once' --worker cuda:0 --worker cpu
  bimetal generate runs/gpt --prompt 'Once' --worker cpu --worker cpu --set mesh.cuts=[5]
  bimetal generate job.toml --prompt 'Once'
  bimetal launch --no-prefix -H pc1,pc2 -- bimetal generate /shared/gpt --prompt 'Once'

  bimetal generate 127.0.0.1:29600 --prompt 'Once' --tokens 50

RUN is a checkpoint, a folder of them (its newest is taken), a job file (its checkpoint.dir, mesh
and workers are taken), a Hugging Face folder, or the address of `bimetal serve`. Several workers
each keep a part of the model: stages, one after the other (docs/pipeline.md).)";

struct GenerateArguments {
  TextWish text;  ///< its run as the user names it; resolved: where the model is
  std::vector<std::string> workers, set;
  std::string token_file;
  double timeout_s = 600;
  bool json = false;
};

struct LanguageModel {
  task::Model model;
  models::LanguageModelConfig config;
};

LanguageModel load_language_model(const fs::path& run) {
  if (fs::exists(run / "config.json")) {
    const auto config = checkpoint::read_huggingface_config(run);
    auto model = checkpoint::make_described_model({.name = config.family, .language = config});
    checkpoint::load_huggingface(model, run);
    return {std::move(model), config};
  }
  auto saved = checkpoint::load_saved_model(run);
  checkpoint::require_language_model(saved.description, saved.path);
  return {std::move(saved.model), *saved.description.language};
}

torch::Device choose_device(const std::string& worker) {
  const auto spec = worker_of_use(job::parse_worker_spec(worker));
  device::apply_worker_limits(spec, /*local_world_size=*/1);
  return device::select_device(spec, /*local_rank=*/0);
}

/// The address of `bimetal serve`; empty if `run` is a folder.
std::optional<net::Endpoint> address_of(const std::string& run) {
  if (fs::exists(run)) return std::nullopt;
  try {
    return net::parse_endpoint(run);
  } catch (const Error&) {
    return std::nullopt;  // a folder that is not there
  }
}

int ask_server(const GenerateArguments& arguments, const net::Endpoint& server) {
  const auto deadline = Deadline::after(milliseconds_of(arguments.timeout_s));
  serving::Client client(
      {server, read_token(arguments.token_file), net::encryption_from_environment()});
  const auto facts = client.facts(deadline);
  if (arguments.text.tokenizer.empty() && facts.classes != 256) {
    throw Error(
        ErrorCode::InvalidArgument,
        fmt::format("the model '{}' knows {} tokens, which are no bytes: name its tokenizer "
                    "by --tokenizer",
                    facts.model, facts.classes));
  }
  const auto& wish = arguments.text;
  const TextCodec codec(wish.tokenizer.empty() ? "bytes" : wish.tokenizer, facts.classes);
  ShownText text(wish.prompt, codec, arguments.json);
  const auto& sampling = wish.sampling;
  client.write(
      {.tokens = sampling.tokens,
       .temperature = sampling.temperature,
       .top_k = sampling.top_k,
       .seed = sampling.seed,
       .prompt = text.prompt()},
      [&](const std::vector<std::int64_t>& tokens) { text.add(tokens); }, deadline);
  text.finish();
  return kSuccess;
}

/// The job of --set's mesh, or of the job file RUN. In that case RUN becomes the job's folder.
job::JobConfig resolve_run(GenerateArguments& arguments) {
  job::JobConfig job;
  if (fs::path(arguments.text.run).extension() != ".toml" || fs::is_directory(arguments.text.run)) {
    job::apply_overrides(job, arguments.set);
    return job;
  }
  job = read_job(arguments.text.run, arguments.set);
  if (job.checkpoint.dir.empty()) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("{} keeps no checkpoints (checkpoint.dir): name what has been trained",
                            arguments.text.run));
  }
  arguments.text.run = job.checkpoint.dir;
  // Workers that had the whole model each: one of them is enough.
  if (!cuts_model(job.mesh)) job.cluster.workers.clear();
  return job;
}

int generate_alone(const TextWish& wish, const std::string& worker, bool as_json) {
  const auto device = choose_device(worker);
  const auto [model, config] = load_language_model(wish.run);
  const TextCodec codec(
      wish.tokenizer.empty() ? tokenizer_of(wish.run, config.vocabulary) : wish.tokenizer,
      config.vocabulary);
  model.to(device);
  ShownText text(wish.prompt, codec, as_json);
  predict::generate(predict::foretold_by(model, device), config.context, text.prompt(),
                    wish.sampling, [&](std::int64_t token) { text.add({token}); });
  text.finish();
  return kSuccess;
}

/// One rank for each of `workers`. They need the job's mesh, its time limits and transport.
int generate_in_parts(RankRequest request, const std::vector<std::string>& workers) {
  if (request.text.prompt.empty()) {
    throw Error(ErrorCode::InvalidArgument,
                "the prompt is empty: a model needs a token to go on from");
  }
  auto& mesh = request.job.mesh;
  mesh = mesh_of_text(std::move(mesh), static_cast<int>(workers.size()));
  launch::SignalWatch signals;
  return run_local_job({request, workers}, signals);
}

int generate_command(GenerateArguments arguments) {
  if (const auto server = address_of(arguments.text.run)) return ask_server(arguments, *server);
  auto job = job_of_use(resolve_run(arguments));
  RankRequest request{
      .work = Work::generate, .job = job, .json = arguments.json, .text = arguments.text};
  if (const auto env = find_rank(job); env && env->world_size > 1) {
    request.worker = worker_of_rank(*env, arguments.workers, job);
    return run_rank(*env, request);
  }
  job.cluster.workers = workers_of_text(job);
  const auto workers = choose_workers(arguments.workers, job);
  if (workers.size() > 1) return generate_in_parts(std::move(request), workers);
  mesh_of_text(job.mesh, 1);  // throws where it is of more
  return generate_alone(arguments.text, workers.front(), arguments.json);
}

void add_text_options(CLI::App& command, TextWish& text) {
  command.add_option("run", text.run, "What has been trained")->required()->type_name("RUN");
  command.add_option("--prompt", text.prompt, "The text to go on from")
      ->required()
      ->type_name("TEXT");
  command.add_option("--tokens", text.sampling.tokens, "How many tokens to draw")
      ->type_name("N")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  command
      .add_option("--temperature", text.sampling.temperature,
                  "Below 1 the likely tokens become likelier; 0: always the likeliest")
      ->type_name("T")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
  command
      .add_option("--top-k", text.sampling.top_k,
                  "Draw among so many of the likeliest tokens alone (default: all)")
      ->type_name("K")
      ->check(CLI::PositiveNumber);
  command.add_option("--seed", text.sampling.seed, "Of the draws")
      ->type_name("N")
      ->capture_default_str();
  command
      .add_option("--tokenizer", text.tokenizer,
                  "tokenizer.json, a folder with one, or bytes (default: the one in RUN or beside "
                  "it, else bytes if the model knows 256 tokens)")
      ->type_name("FILE");
}

void add_generate_options(CLI::App& command, GenerateArguments& arguments) {
  add_text_options(command, arguments.text);
  add_workers(command, arguments.workers,
              "What to compute on; several each have a part of the model (default: the job's, else "
              "auto)");
  command
      .add_option("--set", arguments.set,
                  "How several workers cut the model: mesh.stages, mesh.cuts, mesh.tensor; "
                  "parallel.timeout_s is the longest wait of one for another; may be repeated")
      ->type_name("section.key=value")
      ->allow_extra_args(false);
  command
      .add_option("--token-file", arguments.token_file,
                  "The secret of a server, see `bimetal token`; needed beyond loopback")
      ->type_name("FILE");
  add_encrypt(command, "OPTIONS");
  command.add_flag("--json", arguments.json, "Print the text and its tokens as JSON");
  command.add_option("--timeout", arguments.timeout_s, "Of a server: seconds for all of it")
      ->type_name("SECONDS")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
}

}  // namespace

void add_generate(CLI::App& app, Action& action) {
  auto arguments = std::make_shared<GenerateArguments>();
  auto* command = app.add_subcommand("generate", "Let a trained language model go on with a text");
  add_generate_options(*command, *arguments);
  command->footer(kGenerateExamples);
  command->callback(
      [arguments, &action] { action = [arguments] { return generate_command(*arguments); }; });
}

namespace {

/// Rank 0's input, which all ranks go on from.
struct WantedText {
  std::vector<std::int64_t> prompt;
  predict::Sampling sampling;
};

template <typename Wire>
void fields(Wire& wire, WantedText& wanted) {
  auto& sampling = wanted.sampling;
  wire(sampling.tokens, sampling.temperature, sampling.top_k, sampling.seed, wanted.prompt);
}

struct TextRank {
  job::JobConfig job;
  job::WorkerSpec worker;
  torch::Device device{torch::kCPU};
  std::chrono::milliseconds timeout{};
};

predict::ModelInParts load_part(const parallel::Mesh& mesh, const TextRank& rank,
                                const std::string& run) {
  StatusLine status;
  if (mesh.world().rank() == 0) status.show("loading the model …");
  return predict::load_in_parts(
      mesh, run,
      {.cuts = rank.job.mesh.cuts,
       .tensor_weights = train::part_weights(rank.job.mesh, mesh.shape(), {}),
       .device = rank.device,
       .timeout = rank.timeout});
}

/// On rank 0; nothing elsewhere.
struct Written {
  Written(const TextWish& wish, std::int64_t vocabulary, bool as_json)
      : codec(wish.tokenizer.empty() ? tokenizer_of(wish.run, vocabulary) : wish.tokenizer,
              vocabulary),
        text(wish.prompt, codec, as_json) {}

  const TextCodec codec;
  ShownText text;
};

int write_text(const comm::Group& group, const TextRank& rank, const RankRequest& request) {
  const auto& wish = request.text;
  const parallel::Mesh mesh(group, train::shape_of(rank.job.mesh, group.size()));
  auto model = load_part(mesh, rank, wish.run);
  const auto& language = *model.description.language;
  // A user at a terminal sees which rank has what. Standard output is for the text.
  if (group.rank() == 0 && errors_are_live()) print_to_errors(model.picture);
  std::optional<Written> written;
  comm::Bytes wanted_here;
  if (group.rank() == 0) {
    written.emplace(wish, language.vocabulary, request.json);
    wanted_here = write_fields(WantedText{written->text.prompt(), wish.sampling});
  }
  const auto wanted = read_fields<WantedText>(
      comm::broadcast_bytes(group, std::move(wanted_here), 0, Deadline::after(rank.timeout)));
  const auto by = predict::foretold_in_parts(mesh, std::move(model.part),
                                             {.vocabulary = language.vocabulary,
                                              .device = rank.device,
                                              .speed = rank.worker.speed,
                                              .timeout = rank.timeout});
  predict::generate(by, language.context, wanted.prompt, wanted.sampling, [&](std::int64_t token) {
    if (written) written->text.add({token});
  });
  if (written) written->text.finish();
  return kSuccess;
}

}  // namespace

int generate_as_rank(const launch::RankEnvironment& env, const RankRequest& request) {
  auto job = request.job;
  job.mesh = mesh_of_text(std::move(job.mesh), env.world_size);
  const auto worker = worker_of_use(job::parse_worker_spec(request.worker));
  const auto group = join_group(env, job);
  return in_company(group, [&] {
    device::apply_worker_limits(worker, env.local_world_size);
    return write_text(group,
                      {.job = job,
                       .worker = worker,
                       .device = device::select_device(worker, env.local_rank),
                       .timeout = milliseconds_of(job.parallel.timeout_s)},
                      request);
  });
}

}  // namespace bimetal::cli
