#pragma once
// Ranks of a torch process group on backend bimetal, as threads of the test.

#include <functional>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "bimetal/c10d/make_backend.h"

namespace bimetal::testing {

using BackendPtr = c10::intrusive_ptr<c10d::BimetalBackend>;

/// What torch gives each rank to make a group with, over one store in memory.
BackendPtr make_rank(const c10::intrusive_ptr<::c10d::Store>& store, int rank, int size,
                     std::vector<std::uint64_t> global_ranks = {},
                     std::chrono::milliseconds timeout = std::chrono::seconds(20));

/// Runs `body` for each of `size` ranks, with its default group, and rethrows what one throws.
void run_backends(int size, const std::function<void(BackendPtr backend)>& body);

/// The same with the store that the ranks met by.
void run_backends(
    int size,
    const std::function<void(BackendPtr backend, c10::intrusive_ptr<::c10d::Store> store)>& body);

}  // namespace bimetal::testing
