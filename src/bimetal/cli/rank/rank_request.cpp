#include "bimetal/cli/rank/rank_request.h"

#include <fmt/format.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <type_traits>
#include <utility>

#include "bimetal/base/error.h"
#include "bimetal/base/typed_text.h"
#include "bimetal/cli/job_options.h"
#include "bimetal/cli/rank/rank.h"
#include "bimetal/cli/terminal.h"
#include "bimetal/launch/local/status_pipe.h"
#include "bimetal/launch/meet.h"
#include "bimetal/launch/rank_environment.h"

namespace bimetal::cli {
namespace {

using Json = nlohmann::json;

/// JSON is UTF-8, and a path or a prompt may be none: each byte becomes the character of its
/// number.
std::string widened(const std::string& bytes) {
  std::string text;
  for (const char each : bytes) {
    const auto byte = static_cast<unsigned char>(each);
    if (byte < 0x80) {
      text += each;
    } else {
      text += {static_cast<char>(0xC0 | (byte >> 6)), static_cast<char>(0x80 | (byte & 0x3F))};
    }
  }
  return text;
}

std::string narrowed(const std::string& text) {
  std::string bytes;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    if (byte < 0x80 || i + 1 == text.size()) {
      bytes += text[i];
    } else {
      bytes += static_cast<char>((byte << 6) | (static_cast<unsigned char>(text[++i]) & 0x3F));
    }
  }
  return bytes;
}

/// All fields but the job itself: written and read in one place.
template <typename Request, typename Field>
void each_field(Request& request, const Field& field) {
  field("work", request.work);
  field("worker", request.worker);
  field("report", request.report);
  field("resume", request.resume);
  field("profile", request.profile);
  field("profile_trace", request.profile_trace);
  field("summary", request.summary);
  field("json", request.json);
  field("stop_after_s", request.stop_after_s);
  field("joined", request.joined);
  field("elastic", request.elastic);
  field("door", request.door);
  field("server", request.server);
  field("listen", request.listen);
  field("plan_json", request.plan.json);
  field("plan_details", request.plan.details);
  field("plan_simulate", request.plan.simulate);
  field("plan_timeline", request.plan.timeline);
  field("checkpoint", request.checkpoint);
  field("text_run", request.text.run);
  field("text_prompt", request.text.prompt);
  field("text_tokenizer", request.text.tokenizer);
  field("text_tokens", request.text.sampling.tokens);
  field("text_temperature", request.text.sampling.temperature);
  field("text_top_k", request.text.sampling.top_k);
  field("text_seed", request.text.sampling.seed);
}

constexpr const char* kJob = "job";

}  // namespace

bool has_servers(const RankRequest& request) {
  return request.job.parallel.mode == "server" &&
         (request.work == Work::train || request.work == Work::serve_parameters);
}

std::string to_text(const RankRequest& request) {
  Json json = {{kJob, widened(job::to_toml(request.job))}};
  each_field(request, [&json](const char* name, const auto& value) {
    if constexpr (std::is_same_v<decltype(value), const std::string&>) {
      json[name] = widened(value);
    } else {
      json[name] = value;
    }
  });
  return json.dump();
}

RankRequest parse_request(std::string_view text) {
  RankRequest request;
  std::string job;
  try {
    const auto json = Json::parse(text);
    job = narrowed(json.at(kJob));
    each_field(request, [&json](const char* name, auto& value) {
      json.at(name).get_to(value);
      if constexpr (std::is_same_v<decltype(value), std::string&>) value = narrowed(value);
    });
  } catch (const Json::exception& error) {
    throw Error(ErrorCode::CorruptData,
                fmt::format("what the launcher asks makes no sense: {}", error.what()));
  }
  request.job = job::parse_job(job, "the launcher's job");
  return request;
}

RankRequest for_other_machines(RankRequest request) {
  request.report.clear();
  request.resume.clear();
  request.profile.clear();
  request.profile_trace.clear();
  request.plan.timeline.clear();
  request.json = false;
  request.joined = true;
  return request;
}

comm::Transport transport_of(const job::JobConfig& job) {
  return comm::transport_of(job.fabric.transport, "[fabric] transport");
}

std::string worker_of_rank(const launch::RankEnvironment& env,
                           const std::vector<std::string>& from_command_line,
                           const job::JobConfig& job) {
  const auto workers = choose_workers(from_command_line, job);
  const bool by_default = from_command_line.empty() && job.cluster.workers.empty();
  if (!by_default && env.local_rank >= static_cast<int>(workers.size())) {
    throw Error(
        ErrorCode::InvalidArgument,
        fmt::format("LOCAL_RANK={}, but only {} listed for this machine (by "
                    "--worker or cluster.workers); list one for each local rank, or none",
                    env.local_rank, counted(std::ssize(workers), "worker is", "workers are")),
        env.rank);
  }
  return workers[by_default ? 0 : env.local_rank];
}

int run_rank_process(const std::function<int(launch::StatusReporter&)>& work) {
  launch::StatusReporter status;
  try {
    launch::watch_lifeline(exit_status(ErrorCode::Aborted));  // a thread, which may be one too many
    return work(status);
  } catch (const std::exception& failure) {
    if (!status.connected()) throw;
    const Error error = as_error(failure);
    status.failed(error);
    return exit_status(error.code());
  }
}

std::optional<launch::RankEnvironment> find_rank(const job::JobConfig& job) {
  return launch::find_rank(transport_of(job),
                           Deadline::after(milliseconds_of(job.cluster.join_timeout_s)));
}

bool may_be_rank(const job::JobConfig& job) {
  return launch::looks_like_rank() ||
         comm::transport_for(transport_of(job)) == comm::Transport::mpi;
}

}  // namespace bimetal::cli
