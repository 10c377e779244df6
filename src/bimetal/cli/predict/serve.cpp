#include <fmt/format.h>

#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>

#include "bimetal/base/deadline.h"
#include "bimetal/base/typed_text.h"
#include "bimetal/cli/command.h"
#include "bimetal/cli/job_options.h"
#include "bimetal/cli/predict/text_codec.h"
#include "bimetal/cli/rank/rank.h"
#include "bimetal/cli/terminal.h"
#include "bimetal/job/worker_spec.h"
#include "bimetal/launch/local/process.h"
#include "bimetal/monitor/pages.h"
#include "bimetal/predict/checkpoint_weights.h"
#include "bimetal/predict/generate.h"
#include "bimetal/serving/http/http_front.h"
#include "bimetal/serving/server.h"
#include "bimetal/train/setup.h"

namespace bimetal::cli {
namespace {

constexpr const char* kServeExamples = R"(Examples:
  bimetal serve runs/fashion_mnist
  bimetal serve runs/fashion_mnist --listen 192.168.1.10:29600 --token-file bimetal.token --worker cuda:0
  bimetal predict 127.0.0.1:29600 t10k-images-idx3-ubyte.gz --labels t10k-labels-idx1-ubyte.gz
  bimetal serve runs/gpt_text; bimetal generate 127.0.0.1:29600 --prompt 'The import statement'

A folder of checkpoints stands for its newest one; when a training saves another, that one answers.
A job of parameter servers answers by itself: bimetal predict takes its --listen address.
Ctrl-C ends.)";

struct ServeArguments {
  std::string checkpoint, listen = "127.0.0.1:0", http, token_file, worker = "auto";
  std::int64_t max_batch = serving::BatcherOptions{}.max_batch;
  std::int64_t max_waiting = serving::BatcherOptions{}.max_waiting;
  double max_delay_ms = 0, refresh_s = 1, interval_s = 10;
  bool json = false;
};

serving::ServerOptions server_options(const ServeArguments& arguments) {
  serving::ServerOptions options;
  options.listen = net::parse_endpoint(arguments.listen);
  options.token = read_token(arguments.token_file);
  options.encryption = net::encryption_from_environment();
  options.batching.max_batch = arguments.max_batch;
  options.batching.max_waiting = arguments.max_waiting;
  options.batching.max_delay =
      std::chrono::microseconds(static_cast<std::int64_t>(arguments.max_delay_ms * 1000));
  return options;
}

/// Events between two looks at a server.
class Progress {
 public:
  /// `what` is counted: images, or tokens.
  Progress(const serving::Server& server, std::string what)
      : server_(server), what_(std::move(what)) {}

  /// A line about the time since the last call.
  std::string line(bool json, std::int64_t step) {
    const auto now = server_.figures();
    const double seconds = std::max(watch_.seconds(), 1e-9);
    watch_ = Stopwatch();
    const auto rate = [&](auto field) {
      return static_cast<double>(now.*field - before_.*field) / seconds;
    };
    const double requests = rate(&serving::Figures::requests);
    const double samples = rate(&serving::Figures::samples);
    const double batches = rate(&serving::Figures::batches);
    before_ = now;
    if (json) {
      return nlohmann::ordered_json{{"step", step},
                                    {"requests", now.requests},
                                    {"samples", now.samples},
                                    {"batches", now.batches},
                                    {"refused", now.refused},
                                    {"clients", now.clients},
                                    {"requests_per_s", requests},
                                    {"samples_per_s", samples},
                                    {"latency_median_s", now.latency_median_s},
                                    {"latency_p99_s", now.latency_p99_s}}
          .dump();
    }
    return fmt::format(
        "step {}  {}  {:.3g} requests/s  {:.0f} {}/s{}  latency {:.1f} ms, 99th {:.1f} ms{}", step,
        counted(now.clients, "client"), requests, samples, what_,
        batches > 0 ? fmt::format("  mean batch {:.1f}", samples / batches) : "",
        1000 * now.latency_median_s, 1000 * now.latency_p99_s,
        now.refused ? fmt::format("  {} refused", now.refused) : "");
  }

  /// All of it.
  std::string summary() const {
    const auto now = server_.figures();
    return fmt::format("answered {} of {} {} in {}; refused {}", counted(now.requests, "request"),
                       now.samples, what_, counted(now.batches, "batch", "batches"), now.refused);
  }

  bool busy() const { return server_.figures().requests != before_.requests; }

 private:
  const serving::Server& server_;
  const std::string what_;
  serving::Figures before_;
  Stopwatch watch_;
};

/// Users of HTTP are told who may ask. The secret crosses the network as it is, so it is not one
/// with which a job could be joined.
std::optional<serving::HttpFrontOptions> http_options(const ServeArguments& arguments,
                                                      const net::Token& token) {
  if (arguments.http.empty()) return std::nullopt;
  serving::HttpFrontOptions options{.listen = net::parse_endpoint(arguments.http)};
  if (net::is_loopback(options.listen.host)) return options;
  net::require_token_for(options.listen.host, token);
  if (net::encryption_from_environment() == net::Encryption::on) {
    throw Error(
        ErrorCode::InvalidArgument,
        fmt::format("--http {} is not encrypted, and --encrypt is asked for: answer by HTTP "
                    "on loopback, behind a proxy that encrypts",
                    arguments.http));
  }
  options.token = monitor::monitor_token(token);
  return options;
}

/// Nothing where the tokenizer is not known, or another one than bytes: prompts are tokens then.
/// Others run in a Python process, for which a server that answers everybody cannot wait.
serving::TextCoding coding_of(const ServeArguments& arguments, std::int64_t vocabulary) {
  std::string named;
  try {
    named = tokenizer_of(arguments.checkpoint, vocabulary);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::InvalidArgument) throw;
    return {};
  }
  if (named != "bytes") return {};
  const auto codec = std::make_shared<const TextCodec>(named, vocabulary);
  return {.encode = [codec](const std::string& text) { return codec->encode(text); },
          .decode = [codec](const auto& tokens) { return codec->decode(tokens); }};
}

void announce(Terminal& terminal, const ServeArguments& arguments, const serving::Server& server,
              const serving::HttpFront* http, const predict::CheckpointWeights& weights) {
  const auto at = net::to_string(server.endpoint());
  const auto by_http = http ? net::to_string(http->endpoint()) : std::string();
  if (arguments.json) {
    nlohmann::ordered_json json = {{"address", at}, {"checkpoint", weights.origin().string()}};
    if (http) json["http"] = by_http;
    terminal.print(json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
    return;
  }
  terminal.print(fmt::format("serving {} at {}; ask it with: {}", weights.origin().string(), at,
                             weights.description().language
                                 ? fmt::format("bimetal generate {} --prompt TEXT", at)
                                 : fmt::format("bimetal predict {} IMAGES", at)));
  if (!http) return;
  terminal.print(fmt::format("by HTTP at http://{}{}", by_http,
                             weights.description().language ? "/v1/generate" : "/v1/predict"));
}

int serve_until_stopped(const ServeArguments& arguments, serving::Server& server,
                        predict::CheckpointWeights& weights, launch::SignalWatch& signals,
                        std::optional<serving::HttpFrontOptions> by_http) {
  std::optional<serving::HttpFront> http;
  if (by_http) {
    if (weights.description().language) {
      by_http->coding = coding_of(arguments, server.facts().classes);
    }
    http.emplace(*by_http, server);
  }
  Terminal terminal;
  announce(terminal, arguments, server, http ? &*http : nullptr, weights);
  Progress progress(server, weights.description().language ? "tokens" : "images");
  const auto every =
      milliseconds_of(terminal.live() && !arguments.json ? 1.0 : arguments.interval_s);
  auto origin = weights.origin();
  auto next = Deadline::after(every);
  while (signals.stop_requests() == 0 && !std::ferror(stdout)) {
    signals.pause(milliseconds_of(0.1));
    if (const auto failed = server.failure()) throw Error(*failed);
    if (const auto now = weights.origin(); now != origin) {
      origin = now;
      if (!arguments.json) terminal.print(fmt::format("{} answers now", now.string()));
    }
    if (!next.expired()) continue;
    next = Deadline::after(every);
    const bool quiet = !progress.busy();
    const auto line = progress.line(arguments.json, weights.newest().version.newest);
    if (terminal.live() && !arguments.json) {
      terminal.rewrite(line);
    } else if (!quiet) {
      terminal.print(line);
    }
  }
  terminal.print(arguments.json ? progress.line(true, weights.newest().version.newest)
                                : progress.summary());
  return kInterrupted;
}

int serve_command(const ServeArguments& arguments) {
  launch::SignalWatch signals;
  const auto options = server_options(arguments);
  net::require_token_for(options.listen.host, options.token);
  net::note_if_plain(options.listen.host, options.encryption);
  auto by_http = http_options(arguments, options.token);
  predict::CheckpointWeights weights(arguments.checkpoint, milliseconds_of(arguments.refresh_s));
  job::JobConfig job;
  job.train.dtype = weights.description().dtype;
  train::TrainerOptions trainer;
  trainer.worker = job::parse_worker_spec(arguments.worker);
  const auto place = train::choose_place(job, trainer);
  weights.move_to(place.device);
  if (weights.description().language) {
    predict::LanguageWriter writer(weights.description(), place, trainer.worker.speed, weights);
    serving::Server server(options, writer);
    return serve_until_stopped(arguments, server, weights, signals, std::move(by_http));
  }
  predict::PredictionModel model(weights.description(), place, trainer.worker.speed, weights);
  serving::Server server(options, model);
  return serve_until_stopped(arguments, server, weights, signals, std::move(by_http));
}

void add_serve_options(CLI::App& command, ServeArguments& arguments) {
  command.add_option("checkpoint", arguments.checkpoint, "A checkpoint, or a folder of them")
      ->required()
      ->type_name("DIR");
  command
      .add_option("--listen", arguments.listen,
                  "Where to answer; beyond loopback with a token alone; port 0 takes a free one")
      ->type_name("ADDR:PORT")
      ->capture_default_str();
  command
      .add_option("--http", arguments.http,
                  "Answer by HTTP, too, here: JSON in and out (docs/serving.md)")
      ->type_name("ADDR:PORT");
  command
      .add_option("--token-file", arguments.token_file,
                  "A shared secret, see `bimetal token`; needed beyond loopback")
      ->type_name("FILE");
  add_encrypt(command, "OPTIONS");
  command.add_option("--worker", arguments.worker, "What to compute on (default: auto)")
      ->type_name("SPEC");
  command.add_option("--max-batch", arguments.max_batch, "Images that are computed at once")
      ->type_name("N")
      ->capture_default_str()
      ->check(CLI::Range(1, 1 << 20));
  command
      .add_option(
          "--max-delay-ms", arguments.max_delay_ms,
          "How long a request waits for others to share its batch, beside the time in which "
          "the last batch is computed")
      ->type_name("T")
      ->capture_default_str()
      ->check(CLI::Range(0.0, 10000.0));
  command
      .add_option("--max-waiting", arguments.max_waiting,
                  "Images that may wait; beyond it requests are turned away")
      ->type_name("N")
      ->capture_default_str()
      ->check(CLI::Range(1, 1 << 30));
  command.add_option("--refresh", arguments.refresh_s, "How often to look for a newer checkpoint")
      ->type_name("SECONDS")
      ->capture_default_str()
      ->check(CLI::Range(0.05, 86400.0));
  command
      .add_option("--interval", arguments.interval_s,
                  "How often to print figures where output is no terminal")
      ->type_name("SECONDS")
      ->capture_default_str()
      ->check(CLI::Range(0.1, 86400.0));
  command.add_flag("--json", arguments.json, "Print JSON, one line each time");
}

}  // namespace

void add_serve(CLI::App& app, Action& action) {
  auto arguments = std::make_shared<ServeArguments>();
  auto* command = app.add_subcommand("serve", "Answer what a trained model predicts, or writes");
  add_serve_options(*command, *arguments);
  command->footer(kServeExamples);
  command->callback(
      [arguments, &action] { action = [arguments] { return serve_command(*arguments); }; });
}

}  // namespace bimetal::cli
