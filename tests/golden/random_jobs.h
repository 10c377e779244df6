#pragma once
// Jobs drawn at random: what is learnt, and by which ranks, who hand it on to others on the way.

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "bimetal/job/job_config.h"
#include "support/temporary_folder.h"
#include "unit/train/training_job.h"

namespace bimetal::golden {

/// The data that all of them train on: 72 images, and documents of 417 tokens in all.
class RandomData {
 public:
  RandomData();
  std::filesystem::path images() const { return images_.path(); }
  std::filesystem::path tokens() const { return tokens_.path(); }

 private:
  train::test::SyntheticImages images_{72, 10};
  test::TemporaryFolder tokens_;
};

/// A part of a job, by some ranks.
struct Phase {
  job::JobConfig job;
  int ranks = 1;
  std::vector<std::string> workers = {};  ///< specs, one for each; or all are alike
  std::int64_t until = 0;                 ///< the job's step that it ends after
};

struct RandomJob {
  std::uint64_t seed = 0;
  Phase alone;                ///< by one device that computes each batch whole
  std::vector<Phase> phases;  ///< each goes on from the checkpoint of the one before
  /// How far the two may be apart, relative to the largest number of a tensor: what sums in the
  /// job's precision leave open.
  double tolerance = 0;
};

/// The same for the same seed. Its phases are possible by job::require_possible().
RandomJob draw_job(std::uint64_t seed, const RandomData& data);

}  // namespace bimetal::golden
