#pragma once
// Shapes and types of values in a message of fixed length.

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "bimetal/comm/compress/compression.h"
#include "bimetal/task/unit.h"

namespace bimetal::parallel::pipeline {

/// First how many values there are, or that there are none to come; then by which scheme they are
/// shortened, and of each its type, whether it requires gradients, how many dimensions it has, and
/// these.
using Description = std::array<std::int64_t, 64>;

/// Of each value; undefined ones are said to be so. Error(Unsupported) for more than fits (eight
/// tensors of four dimensions do), or for types that cannot be sent.
Description describe(const task::Values& values, comm::Scheme scheme = comm::Scheme::none);

/// Of values that will not come.
Description describe_nothing();

struct Described {
  task::Values values;  ///< on the meta device: shapes and types without memory
  std::vector<bool> with_gradients;
  comm::Scheme scheme = comm::Scheme::none;
};

/// Nothing for describe_nothing(). Error(CorruptData) for what makes no sense.
std::optional<Described> read_description(const Description& description);

}  // namespace bimetal::parallel::pipeline
