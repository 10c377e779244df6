#pragma once
// train.deterministic: the same bits in every run of a job, or an error.

#include <optional>
#include <string>

#include "bimetal/job/job_config.h"

namespace bimetal::train {

/// Error(Unsupported) for a deterministic job whose workers' shares follow from measured times.
void require_deterministic(const job::JobConfig& job, int ranks);

/// While it lives, libtorch takes deterministic kernels alone if the job asks for them, in this
/// process. One at a time.
class Deterministic {
 public:
  explicit Deterministic(const job::TrainConfig& job);
  ~Deterministic();
  Deterministic(const Deterministic&) = delete;
  Deterministic& operator=(const Deterministic&) = delete;

 private:
  bool on_;
};

/// If an error of libtorch says that an operation has no deterministic kernel: what to tell the
/// user, with its name.
std::optional<std::string> nondeterministic_operation(const std::string& error);

}  // namespace bimetal::train
