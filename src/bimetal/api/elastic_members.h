#pragma once
// This process among the workers of an elastic loop: its address, and the model that it trains.
// Private to api.

#include <torch/csrc/api/include/torch/optim/optimizer.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "bimetal/api/elastic.h"
#include "bimetal/api/session.h"
#include "bimetal/comm/group.h"
#include "bimetal/membership/membership.h"
#include "bimetal/task/task.h"

namespace bimetal::api {

/// With a number of workers. Error(InvalidArgument) for options that make no sense.
ElasticOptions settled(ElasticOptions options);

/// `options`: settled(). Errors: Unsupported for ranks that MPI connects; InvalidArgument for
/// BIMETAL_DOOR_PORT.
membership::Options member_options(const Start& start, const ElasticOptions& options);

/// Everything that a newcomer must have in common with the others.
std::string fingerprint(const task::ModelState& model, const torch::optim::Optimizer& optimizer);

/// Each rank's step, by rank. Collective.
std::vector<std::int64_t> all_steps(comm::Group group, std::int64_t mine,
                                    std::chrono::milliseconds timeout);

}  // namespace bimetal::api
