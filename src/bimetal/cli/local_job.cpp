#include "bimetal/cli/local_job.h"

#include "bimetal/rendezvous/store.h"

namespace bimetal::cli {

int run_local_job(const LocalRanks& ranks, launch::SignalWatch& signals,
                  const std::function<void()>& on_stop_request) {
  auto plan = plan_of(ranks);
  plan.token = ranks.token.empty() ? net::Token::generate() : ranks.token;
  const rendezvous::StoreServer server({"127.0.0.1", 0}, plan.token);
  plan.world_size = static_cast<int>(plan.ranks.size());
  plan.store = server.endpoint();
  try {
    return conclude(launch::run_ranks(plan, signals, on_stop_request));
  } catch (const launch::JobFailed& failure) {
    throw with_resume_hint(failure);
  }
}

}  // namespace bimetal::cli
