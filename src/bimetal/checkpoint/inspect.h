#pragma once
// What checkpoints are, for people: from their state.json, without loading anything.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "bimetal/checkpoint/checkpoint.h"

namespace bimetal::checkpoint {

struct InspectedFile {
  std::string name;
  std::uint64_t bytes = 0;
  std::size_t tensors = 0;  ///< or slices of them; 0: not known
  std::string flaw = {};    ///< empty: it is as it was written
};

struct Inspected {
  std::filesystem::path path;
  std::string flaw = {};  ///< of state.json, where nothing else is known
  std::uint64_t sequence = 0;
  TrainingState state = {};
  std::string optimizer = {};
  bool of_loop = false;       ///< in Python, which may count its steps itself
  int ranks = 0;              ///< that have written slices; 0: of whole tensors
  std::size_t tensors = 0;    ///< parameters and buffers
  std::int64_t elements = 0;  ///< of these
  std::vector<InspectedFile> files = {};

  bool intact() const noexcept;
};

/// A checkpoint, or all of a folder, the last saved first. Reads every byte, to compare checksums.
/// Damage is part of what is found, and so is a file that cannot be read. Errors: InvalidArgument
/// if there is none; System if the folder cannot be read.
std::vector<Inspected> inspect_checkpoints(const std::filesystem::path& path);

}  // namespace bimetal::checkpoint
