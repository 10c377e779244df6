#include "bimetal/cli/train/local_job.h"

#include <chrono>
#include <memory>

#include "bimetal/cli/train/failed_ranks.h"
#include "bimetal/rendezvous/store.h"

namespace bimetal::cli {
namespace {

constexpr std::chrono::seconds kToOwnStore{10};

}  // namespace

int run_local_job(const LocalRanks& ranks, launch::SignalWatch& signals,
                  const std::function<void()>& on_stop_request) {
  auto plan = plan_of(ranks);
  plan.token = ranks.token.empty() ? net::Token::generate() : ranks.token;
  const rendezvous::StoreServer server({"127.0.0.1", 0}, plan.token);
  plan.world_size = static_cast<int>(plan.ranks.size());
  plan.store = server.endpoint();
  std::unique_ptr<rendezvous::Store> store;
  if (plan.world_size > 1) {
    store = rendezvous::connect_store(plan.store, plan.token, Deadline::after(kToOwnStore));
    tell_of_failed_ranks(plan, ranks, *store);
  }
  try {
    return conclude(launch::run_ranks(plan, signals, on_stop_request));
  } catch (const launch::JobFailed& failure) {
    throw with_resume_hint(failure);
  }
}

}  // namespace bimetal::cli
