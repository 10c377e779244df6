#include "bimetal/api/elastic_members.h"

#include <c10/util/StringUtil.h>
#include <fmt/format.h>

#include <algorithm>
#include <asio/ip/host_name.hpp>
#include <optional>
#include <span>
#include <utility>

#include "bimetal/base/deadline.h"
#include "bimetal/base/error.h"
#include "bimetal/checkpoint/optimizer_state.h"
#include "bimetal/data/digest.h"
#include "bimetal/membership/door.h"
#include "bimetal/net/silence.h"

namespace bimetal::api {
namespace {

/// Somebody whom the others reach; nobody where they are all on this machine.
std::optional<net::Endpoint> somebody(const Start& start) {
  if (!start.doors.empty()) return membership::doors_in(start.doors).front();
  if (!start.rank || start.rank->on_one_machine()) return std::nullopt;
  return start.rank->master;
}

}  // namespace

ElasticOptions settled(ElasticOptions options) {
  if (options.min_workers == 0) options.min_workers = std::max(1, launch::elastic_minimum());
  const bool fits = options.max_workers == 0 || options.max_workers >= options.min_workers;
  if (options.min_workers >= 1 && options.max_workers >= 0 && fits) return options;
  throw Error(ErrorCode::InvalidArgument,
              fmt::format("ElasticOptions::min_workers is {} and max_workers {}: at least one is "
                          "needed, and no more than may be there",
                          options.min_workers, options.max_workers));
}

membership::Options member_options(const Start& start, const ElasticOptions& options) {
  if (start.doors.empty() && start.rank && start.rank->store == launch::StoreOwner::Nobody) {
    throw Error(ErrorCode::Unsupported,
                "MPI connects these ranks, and cannot go on without a lost one: start them by "
                "`mpirun … bimetal launch --mpi --elastic -- PROGRAM` (docs/elastic.md)");
  }
  membership::Options how;
  const int local_rank = start.rank ? start.rank->local_rank : 0;
  const auto door = membership::door_of_process(somebody(start), local_rank, !start.doors.empty());
  how.listen = door.host;
  how.port = door.port;
  how.token = start.token;
  how.host = asio::ip::host_name();
  how.worker = start.worker_text;
  how.keeper = options.keeper;
  how.least = options.min_workers;
  how.most = options.max_workers;
  how.patience = options.patience;
  how.timeout = options.timeout;
  how.silence =
      net::peer_timeout_for(net::peer_timeout_from_environment(), net::is_loopback(how.listen));
  how.group.timeout = options.timeout;
  return how;
}

std::string fingerprint(const task::ModelState& model, const torch::optim::Optimizer& optimizer) {
  std::string facts = checkpoint::optimizer_kind(optimizer);
  for (const auto* tensors : {&model.parameters, &model.buffers}) {
    for (const auto& [name, tensor] : *tensors) {
      facts +=
          fmt::format("\n{} {} {}", name, c10::str(tensor.sizes()), c10::str(tensor.scalar_type()));
    }
  }
  return data::hex(data::digest_of(facts));
}

std::vector<std::int64_t> all_steps(comm::Group group, std::int64_t mine,
                                    std::chrono::milliseconds timeout) {
  std::vector<std::int64_t> all(static_cast<std::size_t>(group.size()));
  group
      .all_gather(comm::buffer(std::span(&mine, 1)), comm::buffer(std::span(all)),
                  Deadline::after(timeout))
      .wait();
  return all;
}

}  // namespace bimetal::api
