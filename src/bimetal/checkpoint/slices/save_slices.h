#pragma once
// Checkpoints for which each rank writes its own part, all at the same time, so that no rank ever
// holds all of it. Layout: docs/checkpoints.md.

#include <filesystem>
#include <functional>
#include <vector>

#include "bimetal/checkpoint/checkpoint.h"
#include "bimetal/checkpoint/optimizer_state.h"
#include "bimetal/checkpoint/slices/slice_file.h"
#include "bimetal/comm/group.h"
#include "bimetal/job/job_config.h"

namespace bimetal::checkpoint {

/// A rank's part of a checkpoint. If several ranks keep all of a tensor, one of them or all of them
/// give it.
struct OwnSlices {
  std::vector<OwnSlice> model;      ///< parameters and buffers
  std::vector<OwnSlice> optimizer;  ///< named as optimizer_tensors has them
  /// Called after each that has been written: data in a file's memory can be let go.
  std::function<void()> written = [] {};
};

/// Saves as save_checkpoint does, into rank 0's folder. Ranks that see that folder, on a common
/// machine or file system, write into it themselves, and send their parts to rank 0 otherwise, in
/// pieces of a few MiB. state.json comes last, and all of it into place then, so that the older
/// checkpoint is whole whatever rank is killed when. Returns on every rank once it is there; the
/// path is rank 0's. Collective. Errors: where a rank cannot write its part, or rank 0 the common
/// part, the same error on all of them, which names the rank and the file, once nothing is left of
/// the attempt; Internal if the slices do not make whole tensors.
std::filesystem::path save_slices(comm::Group group, const job::CheckpointConfig& config,
                                  const OwnSlices& own, const OptimizerFacts& optimizer,
                                  const TrainingState& state);

/// The same as a folder of any name, an absolute path, which is replaced if it is a checkpoint or
/// empty, and refused (InvalidArgument) if there is anything else; nothing else is removed.
/// `facts`: rank 0's state, optimizer and loop.
std::filesystem::path save_slices_as(comm::Group group, const std::filesystem::path& target,
                                     const OwnSlices& own, const Manifest& facts);

}  // namespace bimetal::checkpoint
