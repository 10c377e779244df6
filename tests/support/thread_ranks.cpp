#include "support/thread_ranks.h"

#include <exception>
#include <mutex>
#include <thread>
#include <utility>

#include "support/in_process_mesh.h"

namespace bimetal::testing {

std::vector<comm::Group> make_thread_groups(int n, comm::GroupOptions options) {
  std::vector<comm::Group> groups;
  for (auto& mesh : make_in_process_meshes(n)) {
    groups.push_back(comm::make_group(std::move(mesh), options));
  }
  return groups;
}

void run_ranks(int n, const std::function<void(int rank, comm::Group group)>& body,
               comm::GroupOptions options) {
  run_ranks(make_thread_groups(n, options), body);
}

void run_ranks(std::vector<comm::Group> groups,
               const std::function<void(int rank, comm::Group group)>& body) {
  std::mutex mutex;
  std::exception_ptr first;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < static_cast<int>(groups.size()); ++rank) {
    threads.emplace_back([&, rank, group = std::exchange(groups[rank], {})]() mutable {
      try {
        body(rank, group);
      } catch (...) {
        std::lock_guard lock(mutex);
        if (!first) first = std::current_exception();
      }
      group = {};  // only now: the others' errors are consequences of this one
    });
  }
  for (auto& thread : threads) thread.join();
  if (first) std::rethrow_exception(first);
}

}  // namespace bimetal::testing
