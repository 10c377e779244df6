#pragma once
// The task of one rank. The process that reads the user's command line makes one request for each
// process that it starts, and hands it on in the environment. `bimetal rank` carries it out.

#include <string>
#include <string_view>

#include "bimetal/job/job_config.h"
#include "bimetal/predict/sampling.h"

namespace bimetal::cli {

/// The variable that holds a request on its way to a rank.
inline constexpr const char* kRequestVariable = "BIMETAL_REQUEST";

enum class Work { train, serve_parameters, plan, evaluate, generate };

/// The output of `bimetal plan`.
struct PlanOutput {
  bool json = false;
  bool details = false;  ///< tables, too
  std::string simulate;  ///< a file that describes a cluster; empty: this one is planned
  std::string timeline;  ///< where a picture of a step goes; empty: none
};

/// The text that `bimetal generate` is to write.
struct TextWish {
  std::string run;  ///< the trained model: a checkpoint or folder
  std::string prompt;
  std::string tokenizer;  ///< empty: the one of `run`
  predict::Sampling sampling = {};
};

/// A rank's whole request. Empty texts stand for options that were not given.
struct RankRequest {
  Work work = Work::train;
  job::JobConfig job = {};
  std::string worker = "auto";  ///< spec of its device

  // For the process that leads the job. Others take no notice.
  std::string report = {};                       ///< where figures are written
  std::string resume = {};                       ///< the checkpoint to go on from
  std::string profile = {}, profile_trace = {};  ///< see profile_output.h
  bool summary = true;                           ///< prints the closing table
  bool json = false;  ///< prints figures as JSON; a training's other output does not go there
  double stop_after_s = 0;  ///< > 0: seconds of training after which the job ends well

  bool joined = false;    ///< on another machine than the one that the job was started on
  bool elastic = false;   ///< workers may come, leave and be lost: docs/elastic.md
  std::string door = {};  ///< of a worker that comes later: where to ask for members

  // With parallel.mode = "server".
  int server = 0;           ///< number of a parameter server
  std::string listen = {};  ///< where that one listens; empty: where the job's store is

  PlanOutput plan = {};
  std::string checkpoint = {};  ///< to be evaluated
  TextWish text = {};
};

/// Whether processes of this job keep parameters. Nothing but training needs them.
bool has_servers(const RankRequest& request);

/// JSON; bytes of any encoding are kept.
std::string to_text(const RankRequest& request);

/// The way back. Error(CorruptData) for text that is none; those of job::parse_job.
RankRequest parse_request(std::string_view text);

/// The same for the ranks of another machine, without the parts that are this machine's.
RankRequest for_other_machines(RankRequest request);

}  // namespace bimetal::cli
