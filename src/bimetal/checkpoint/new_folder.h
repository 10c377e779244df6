#pragma once
// Where somebody asks for a new folder.

#include <filesystem>

namespace bimetal::checkpoint {

/// The absolute path of `folder`, for a TemporaryPath; what it lies in is made.
/// Error(InvalidArgument) if something lies in `folder`, or it is none.
std::filesystem::path place_of_new_folder(const std::filesystem::path& folder);

}  // namespace bimetal::checkpoint
