#pragma once
// Image sets by name.

#include <filesystem>
#include <string>

#include "bimetal/api/job.h"
#include "bimetal/data/images/dataset.h"

namespace bimetal::data {

/// The training set of load_dataset ("fashion-mnist", "mnist"), the same on all ranks: each finds
/// it in `path` (a folder or URL) or the usual places, or is sent it by one that has it
/// (docs/data.md). Collective. Errors: those of train::share_dataset and load_dataset; after one
/// the job's group is unusable.
ImageDataset idx_images(const std::string& name, const Job& job,
                        const std::filesystem::path& path = {});

}  // namespace bimetal::data
