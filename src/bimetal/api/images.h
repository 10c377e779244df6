#pragma once
// Image sets by name.

#include <filesystem>
#include <string>

#include "bimetal/api/job.h"
#include "bimetal/data/dataset.h"

namespace bimetal::data {

/// The training set of load_dataset ("fashion-mnist", "mnist"), loaded by each rank for itself from
/// `path` or the usual places, and found to be of the same size on all of them. Collective. Errors:
/// those of load_dataset; CallMismatch naming the rank whose set has another size.
ImageDataset idx_images(const std::string& name, const Job& job,
                        const std::filesystem::path& path = {});

}  // namespace bimetal::data
