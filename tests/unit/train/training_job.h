#pragma once
// A small training job on images made for the test, and ranks that run it as threads.

#include <gtest/gtest.h>

#include <cstdint>
#include <fstream>
#include <functional>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "bimetal/checkpoint/safetensors.h"
#include "bimetal/job/job_config.h"
#include "bimetal/job/worker_spec.h"
#include "bimetal/task/catalog/job_task.h"
#include "bimetal/train/trainer.h"
#include "support/temporary_folder.h"
#include "support/thread_ranks.h"

namespace bimetal::train::test {

using bimetal::test::TemporaryFolder;

/// Four IDX files: noise whose bright column tells the class, so that there is something to learn.
class SyntheticImages {
 public:
  SyntheticImages(std::uint32_t train, std::uint32_t test, std::uint32_t side = 8) {
    write("train", train, side, 1);
    write("t10k", test, side, 2);
  }
  const std::filesystem::path& path() const { return folder_.path(); }

 private:
  static void put_number(std::ofstream& file, std::uint32_t number) {
    for (const int shift : {24, 16, 8, 0}) file.put(static_cast<char>(number >> shift));
  }

  void write(const std::string& name, std::uint32_t count, std::uint32_t side, unsigned seed) {
    std::mt19937 random(seed);
    std::ofstream images(folder_ / (name + "-images-idx3-ubyte"), std::ios::binary);
    std::ofstream labels(folder_ / (name + "-labels-idx1-ubyte"), std::ios::binary);
    for (const auto number : {0x803u, count, side, side}) put_number(images, number);
    for (const auto number : {0x801u, count}) put_number(labels, number);
    for (std::uint32_t i = 0; i < count; ++i) {
      const auto label = random() % 10;
      labels.put(static_cast<char>(label));
      for (std::uint32_t pixel = 0; pixel < side * side; ++pixel) {
        const auto bright = pixel % side == label % side ? 100u : 0u;
        images.put(static_cast<char>(random() % 100 + bright));
      }
    }
  }

  TemporaryFolder folder_;
};

/// In float64, where the order of additions shows in the last digits alone.
inline job::JobConfig small_job(const SyntheticImages& images) {
  job::JobConfig job;
  job.model.name = "linear";
  job.data.path = images.path().string();
  job.train.epochs = 2;
  job.train.global_batch = 32;
  job.train.dtype = "float64";
  job.train.learning_rate = 0.1;
  return job;
}

/// The task of such a job.
inline std::shared_ptr<const task::JobTask> task_of(const job::JobConfig& job) {
  return task::make_task(job, data::find_dataset(job.data.name, job.data.path));
}

inline double accuracy_of(const progress::Report& report) {
  return progress::value_of(progress::last_metrics(report), "accuracy");
}

/// Keeps what it is told. One for each rank.
struct Recorder : progress::Observer {
  std::vector<progress::WorkerPlace> workers;
  std::vector<progress::Progress> steps;
  std::vector<std::string> notices;
  std::vector<std::string> checkpoints;
  std::vector<double> accuracies, losses;

  void on_workers(const std::vector<progress::WorkerPlace>& places) override { workers = places; }
  void on_step(const progress::Progress& progress) override { steps.push_back(progress); }
  void on_notice(const std::string& text) override { notices.push_back(text); }
  void on_checkpoint(const std::string& path, std::int64_t) override {
    checkpoints.push_back(path);
  }
  void on_evaluated(std::int64_t, const progress::Evaluation& evaluation) override {
    accuracies.push_back(progress::value_of(evaluation.metrics, "accuracy"));
    losses.push_back(evaluation.loss);
  }
};

struct RunOptions {
  std::vector<double> speeds = {};        ///< emulated, one per rank; missing ones are 1
  std::vector<std::string> workers = {};  ///< their specs likewise; missing: cpu:threads=1
  std::optional<std::filesystem::path> resume = {};
  std::function<bool(int rank)> stop_requested = {};
};

struct Run {
  std::vector<progress::Report> reports;  ///< one per rank
  std::vector<Recorder> recorders;
};

/// Runs `job` on `ranks` threads; an error of any rank is thrown here.
inline Run run_job(const job::JobConfig& job, int ranks, const RunOptions& options = {}) {
  Run run{std::vector<progress::Report>(static_cast<std::size_t>(ranks)),
          std::vector<Recorder>(static_cast<std::size_t>(ranks))};
  bimetal::testing::run_ranks(ranks, [&](int, comm::Group group) {
    const auto rank = static_cast<std::size_t>(group.rank());
    TrainerOptions mine;
    mine.worker = job::parse_worker_spec(rank < options.workers.size() ? options.workers[rank]
                                                                       : "cpu:threads=1");
    if (rank < options.speeds.size()) mine.worker.speed = options.speeds[rank];
    mine.local_rank = group.rank();
    mine.local_world_size = group.size();
    mine.host_name = "host" + std::to_string(rank);
    mine.resume = options.resume;
    if (options.stop_requested) {
      mine.stop_requested = [&, rank] { return options.stop_requested(static_cast<int>(rank)); };
    }
    run.reports[rank] = run_training(job, group, mine, run.recorders[rank]);
  });
  return run;
}

/// The parameters in a checkpoint's folder.
inline checkpoint::TensorMap parameters_of(const std::filesystem::path& checkpoint) {
  return checkpoint::read_safetensors(checkpoint / "model.safetensors");
}

/// Largest difference of any element, relative to the largest element.
inline double relative_difference(const checkpoint::TensorMap& a, const checkpoint::TensorMap& b) {
  double largest = 0;
  for (const auto& [name, tensor] : a) {
    const auto& other = b.at(name);
    const auto scale = tensor.abs().max().item<double>();
    largest = std::max(largest, (tensor - other).abs().max().item<double>() / scale);
  }
  return largest;
}

/// A test of jobs that leave checkpoints: of `job_`, which it makes as it wants it.
class CheckpointedJob : public ::testing::Test {
 protected:
  /// Trains so many steps (0: all) with its checkpoints in a folder `name`; returns the last of
  /// them.
  std::filesystem::path train(const std::string& name, int ranks, std::int64_t steps = 0,
                              std::optional<std::filesystem::path> resume = {},
                              std::vector<std::string> workers = {}) {
    auto job = job_;
    job.train.steps = steps;
    job.checkpoint.dir = (folder_ / name).string();
    last_ = run_job(job, ranks, {.workers = std::move(workers), .resume = resume});
    return last_.recorders[0].checkpoints.back();
  }

  const TemporaryFolder folder_;
  job::JobConfig job_;
  test::Run last_;
};

}  // namespace bimetal::train::test
