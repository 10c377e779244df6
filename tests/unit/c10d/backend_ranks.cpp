#include "unit/c10d/backend_ranks.h"

#include <exception>
#include <thread>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

namespace bimetal::testing {

BackendPtr make_rank(const c10::intrusive_ptr<::c10d::Store>& store, int rank, int size,
                     std::vector<std::uint64_t> global_ranks, std::chrono::milliseconds timeout) {
  std::string name = "default";
  for (const auto global : global_ranks) name.append("/").append(std::to_string(global));
  auto options = c10::make_intrusive<c10d::BackendOptions>(timeout);
  options->group_name = name;
  options->global_ranks_in_group = std::move(global_ranks);
  return c10d::make_backend(c10::make_intrusive<::c10d::PrefixStore>(name, store), rank, size,
                            std::move(options));
}

void run_backends(int size,
                  const std::function<void(BackendPtr, c10::intrusive_ptr<::c10d::Store>)>& body) {
  const auto store = c10::make_intrusive<::c10d::HashStore>();
  std::vector<std::exception_ptr> errors(static_cast<std::size_t>(size));
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < size; ++rank) {
    ranks.emplace_back([&, rank] {
      try {
        body(make_rank(store, rank, size), store);
      } catch (...) {
        errors[static_cast<std::size_t>(rank)] = std::current_exception();
      }
    });
  }
  for (auto& rank : ranks) rank.join();
  for (const auto& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}

void run_backends(int size, const std::function<void(BackendPtr)>& body) {
  run_backends(size, [&](BackendPtr backend, const c10::intrusive_ptr<::c10d::Store>&) {
    body(std::move(backend));
  });
}

}  // namespace bimetal::testing
