#include "support/thread_ranks.h"

#include <chrono>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

#include "bimetal/rendezvous/bootstrap.h"
#include "bimetal/rendezvous/store.h"
#include "support/in_process_mesh.h"

namespace bimetal::testing {
namespace {

// Runs `body(rank)` on a thread for each rank; rethrows what was thrown first.
void on_threads(int n, const std::function<void(int rank, std::function<void()> failed)>& body) {
  std::mutex mutex;
  std::exception_ptr first;
  const auto keep_first = [&] {
    std::lock_guard lock(mutex);
    if (!first) first = std::current_exception();
  };
  std::vector<std::thread> threads;
  for (int rank = 0; rank < n; ++rank) {
    threads.emplace_back([&, rank] { body(rank, keep_first); });
  }
  for (auto& thread : threads) thread.join();
  if (first) std::rethrow_exception(first);
}

}  // namespace

std::vector<comm::Group> make_groups(std::vector<std::unique_ptr<net::Mesh>> meshes,
                                     comm::GroupOptions options) {
  const std::vector<comm::GroupOptions> alike(meshes.size(), options);
  return make_groups(std::move(meshes), alike);
}

std::vector<comm::Group> make_groups(std::vector<std::unique_ptr<net::Mesh>> meshes,
                                     const std::vector<comm::GroupOptions>& options) {
  std::vector<comm::Group> groups(meshes.size());
  on_threads(static_cast<int>(meshes.size()), [&](int rank, const std::function<void()>& failed) {
    try {
      groups[rank] = comm::make_group(std::move(meshes[rank]), options[rank]);
    } catch (...) {
      failed();
    }
  });
  return groups;
}

std::vector<comm::Group> make_thread_groups(int n, comm::GroupOptions options) {
  return make_groups(make_in_process_meshes(n), options);
}

std::vector<std::unique_ptr<net::Mesh>> make_tcp_meshes(int n, bool large) {
  const auto deadline = Deadline::after(std::chrono::seconds(60));
  rendezvous::StoreServer server({"127.0.0.1", 0}, {});
  std::vector<std::unique_ptr<net::Mesh>> meshes(n);
  on_threads(n, [&](int rank, const std::function<void()>& failed) {
    try {
      const auto store = rendezvous::connect_store(server.endpoint(), {}, deadline);
      rendezvous::BootstrapOptions bootstrap;
      if (large) bootstrap.complete_up_to = 1;
      meshes[rank] = rendezvous::connect_mesh(*store, rank, n, bootstrap, deadline);
    } catch (...) {
      failed();
    }
  });
  return meshes;
}

std::vector<comm::Group> make_tcp_groups(int n, comm::GroupOptions options, bool large) {
  return make_groups(make_tcp_meshes(n, large), options);
}

void run_ranks(int n, const RankBody& body, comm::GroupOptions options) {
  run_ranks(make_thread_groups(n, options), body);
}

void run_ranks(std::vector<comm::Group> groups, const RankBody& body) {
  on_threads(static_cast<int>(groups.size()), [&](int rank, const std::function<void()>& failed) {
    try {
      body(rank, groups[rank]);
    } catch (...) {
      failed();
    }
    groups[rank] = {};  // only now: the others' errors are consequences of this one
  });
}

}  // namespace bimetal::testing
