// Jobs drawn at random, by ranks that hand them on to others, against one device: to what the
// precision of their sums leaves open, in float64 1e-12. BIMETAL_DRAWS says how many (20),
// BIMETAL_SEED from which seed on; a failure prints its seed and its job.

#include <gtest/gtest.h>
#include <torch/csrc/api/include/torch/types.h>

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <iterator>
#include <mutex>
#include <numeric>
#include <optional>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "bimetal/checkpoint/checkpoint.h"
#include "bimetal/train/server/server_job.h"
#include "golden/random_jobs.h"

namespace bimetal::golden {
namespace {

std::uint64_t number_from(const char* variable, std::uint64_t otherwise) {
  const char* text = std::getenv(variable);
  return text ? std::stoull(text) : otherwise;
}

void print(std::ostream& out, const Phase& phase, const job::JobConfig& beside) {
  const auto known = job::keys_in(beside);
  out << phase.ranks << " ranks";
  for (const auto& worker : phase.workers) out << " " << worker;
  out << " to step " << phase.until << ":\n";
  for (const auto& key : job::keys_in(phase.job)) {
    if (!known.contains(key)) out << "    " << key << "\n";
  }
}

/// The settings that differ from the defaults of job files, and the ranks that train.
std::string text_of(const RandomJob& job) {
  std::ostringstream out;
  out << "BIMETAL_SEED=" << job.seed << "\n  ";
  print(out, job.alone, {});
  for (const auto& phase : job.phases) {
    out << "  then ";
    print(out, phase, job.alone.job);
  }
  return out.str();
}

/// Servers and workers, all threads of this process.
class ServersAndWorkers {
 public:
  ServersAndWorkers(const Phase& phase, std::optional<std::filesystem::path> resume)
      : phase_(phase), job_(phase.job), resume_(std::move(resume)) {
    job_.servers.weigh = false;  // all links are alike
  }

  /// Returns server 0's record.
  train::test::Recorder run() {
    std::vector<std::thread> threads;
    const int servers = job::server_processes(phase_.job.servers);
    for (int server = 0; server < servers; ++server) {
      threads.emplace_back([=, this] { unless_failed([&] { serve(server); }); });
    }
    for (int worker = 0; worker < phase_.ranks; ++worker) {
      threads.emplace_back([=, this] { unless_failed([&] { work(worker); }); });
    }
    for (auto& thread : threads) thread.join();
    if (failure_) std::rethrow_exception(failure_);
    return std::move(told_);
  }

 private:
  template <typename Body>
  void unless_failed(Body body) {
    try {
      body();
    } catch (...) {
      const std::scoped_lock lock(mutex_);
      if (!failure_) failure_ = std::current_exception();
    }
  }

  train::TrainerOptions trainer() const {
    train::TrainerOptions options;
    options.worker = job::parse_worker_spec("cpu:threads=1");
    options.host_name = "here";
    options.stop_requested = [this] { return failed(); };
    return options;
  }

  /// As each thread has its own.
  parallel::server::ServerDirectory directory() const {
    constexpr std::chrono::minutes kPatience{5};
    return parallel::server::ServerDirectory({.store = store_.endpoint(),
                                              .token = credentials_.token,
                                              .deadline = Deadline::after(kPatience),
                                              .stop = [this] { return failed(); }});
  }

  void serve(int server) {
    auto directory = this->directory();
    train::ServerRun run;
    run.server = server;
    run.credentials = credentials_;
    run.directory = &directory;
    run.trainer = trainer();
    run.trainer.resume = resume_;
    train::test::Recorder told;
    train::run_parameter_server(job_, run, told);
    if (server == 0) told_ = std::move(told);
  }

  void work(int worker) {
    auto directory = this->directory();
    train::WorkerRun run;
    run.credentials = credentials_;
    run.directory = &directory;
    run.trainer = trainer();
    run.trainer.local_rank = worker;
    run.trainer.local_world_size = phase_.ranks;
    run.number = worker;
    train::test::Recorder told;
    train::run_worker(job_, run, told);
  }

  bool failed() const {
    const std::scoped_lock lock(mutex_);
    return failure_ != nullptr;
  }

  const Phase& phase_;
  job::JobConfig job_;
  const std::optional<std::filesystem::path> resume_;
  parallel::server::Credentials credentials_{.token = net::Token::generate(), .job_id = "job"};
  const rendezvous::StoreServer store_{{"127.0.0.1", 0}, credentials_.token};
  mutable std::mutex mutex_;
  std::exception_ptr failure_;
  train::test::Recorder told_;
};

struct Outcome {
  std::filesystem::path saved;
  std::vector<double> losses = {};
};

class RandomJobs : public ::testing::TestWithParam<std::uint64_t> {
 protected:
  Outcome train(Phase phase, const std::string& name, std::optional<std::filesystem::path> resume) {
    phase.job.train.steps = phase.until;
    phase.job.train.decay_steps = steps_;
    phase.job.checkpoint.dir = (folder_ / name).string();
    const auto told = told_by(phase, std::move(resume));
    Outcome outcome{told.checkpoints.back()};
    for (const auto& step : told.steps) outcome.losses.push_back(step.loss);
    return outcome;
  }

  checkpoint::TensorMap tensors_of(const std::filesystem::path& saved) {
    const auto whole = folder_ / ("whole" + std::to_string(++consolidated_));
    checkpoint::consolidate_checkpoint(saved, whole);
    auto all = checkpoint::read_safetensors(whole / "model.safetensors");
    all.merge(checkpoint::read_safetensors(whole / "optimizer.safetensors"));
    return all;
  }

  void expect_same(const Outcome& found, const Outcome& expected, double tolerance) {
    const auto ours = tensors_of(found.saved), theirs = tensors_of(expected.saved);
    EXPECT_EQ(ours.size(), theirs.size());
    for (const auto& [name, tensor] : theirs) {
      ASSERT_TRUE(ours.contains(name)) << name;
      const auto difference = (ours.at(name) - tensor).abs().max().item<double>();
      const auto scale = std::max(tensor.abs().max().item<double>(), 1e-3);
      EXPECT_LE(difference / scale, tolerance) << name;
    }
    ASSERT_EQ(found.losses.size(), expected.losses.size());
    for (std::size_t i = 0; i < expected.losses.size(); ++i) {
      const double within = tolerance * std::max(1.0, expected.losses[i]);
      EXPECT_NEAR(found.losses[i], expected.losses[i], within) << "step " << i + 1;
    }
  }

  std::int64_t steps_ = 0;  ///< of the whole job

 private:
  static train::test::Recorder told_by(const Phase& phase,
                                       std::optional<std::filesystem::path> resume) {
    if (phase.job.parallel.mode == "server") return ServersAndWorkers(phase, resume).run();
    auto run = train::test::run_job(phase.job, phase.ranks,
                                    {.workers = phase.workers, .resume = std::move(resume)});
    return std::move(run.recorders.front());
  }

  const test::TemporaryFolder folder_;
  int consolidated_ = 0;
};

const RandomData& random_data() {
  static const RandomData data;
  return data;
}

TEST_P(RandomJobs, TrainAsOneDevice) {
  const auto job = draw_job(GetParam(), random_data());
  SCOPED_TRACE(text_of(job));
  steps_ = job.alone.until;
  const auto expected = train(job.alone, "alone", {});
  Outcome found;
  try {
    for (const auto& phase : job.phases) {
      const auto from = found.saved.empty() ? std::nullopt : std::optional(found.saved);
      auto part = train(phase, "phase" + std::to_string(phase.until), from);
      found.saved = part.saved;
      std::ranges::copy(part.losses, std::back_inserter(found.losses));
    }
  } catch (const Error& error) {
    FAIL() << error.what();
  }
  expect_same(found, expected, job.tolerance);
}

std::vector<std::uint64_t> seeds() {
  std::vector<std::uint64_t> all(number_from("BIMETAL_DRAWS", 20));
  std::iota(all.begin(), all.end(), number_from("BIMETAL_SEED", 1));
  return all;
}

INSTANTIATE_TEST_SUITE_P(Seeds, RandomJobs, ::testing::ValuesIn(seeds()),
                         ::testing::PrintToStringParamName());

}  // namespace
}  // namespace bimetal::golden
