#pragma once
// The state of libtorch in this process that a run sets: its choice of kernels, its generators.

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "bimetal/comm/group.h"
#include "bimetal/job/job_config.h"
#include "bimetal/progress/observer.h"

namespace bimetal::train {

// train.deterministic: the same bits in every run of a job, or an error.

/// Error(Unsupported) for a deterministic job in which measured times decide: on workers' shares,
/// their precision or their memory format.
void require_deterministic(const job::JobConfig& job, int ranks);

/// While it lives, libtorch uses only deterministic kernels in this process if the job asks for
/// them. Otherwise cuDNN measures which algorithm is fastest for each shape
/// (torch.backends.cudnn.benchmark), if shapes stay the same. A share that changes would be
/// measured anew, and its slow first step taken for a slow device. Deterministic ones: one at a
/// time.
class KernelChoice {
 public:
  KernelChoice(const job::JobConfig& job, int ranks);
  ~KernelChoice();
  KernelChoice(const KernelChoice&) = delete;
  KernelChoice& operator=(const KernelChoice&) = delete;

 private:
  bool deterministic_;
};

/// If an error of libtorch says that an operation has no deterministic kernel: what to tell the
/// user, with its name.
std::optional<std::string> nondeterministic_operation(const std::string& error);

// torch's own generators, from which layers draw whose numbers are not the sample's: jobs with
// parallel.exact = "relaxed".

/// Which ranks' default generators (the CPU's) are in the same state, for people to read; nothing
/// if none are. The same on every rank. Collective.
std::optional<std::string> alike_random_states(comm::Group group,
                                               std::chrono::milliseconds timeout);

/// In a relaxed job each rank draws numbers of its own: models are drawn alike on all of them, but
/// two ranks that drop the same places would learn less. In others nothing is done. Use from one
/// thread.
class DrawsApart {
 public:
  /// `job` must outlive it.
  DrawsApart(const job::JobConfig& job, comm::Group group);

  /// Seeds torch's default generators by the job's seed, the rank and the step before the next.
  void begin(std::int64_t step) const;

  /// After the first step: a notice if the user's code has seeded them alike again. Collective.
  void look(progress::Observer& observer);

 private:
  const job::JobConfig& job_;
  comm::Group group_;
  bool due_;
};

}  // namespace bimetal::train
