#include "bimetal/api/elastic.h"

#include <c10/util/StringUtil.h>
#include <fmt/format.h>
#include <torch/csrc/api/include/torch/optim/optimizer.h>
#include <torch/csrc/api/include/torch/types.h>

#include <algorithm>
#include <asio/ip/host_name.hpp>
#include <chrono>
#include <cstdint>
#include <exception>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "bimetal/api/session.h"
#include "bimetal/base/deadline.h"
#include "bimetal/base/error.h"
#include "bimetal/checkpoint/checkpoint.h"
#include "bimetal/checkpoint/optimizer_state.h"
#include "bimetal/checkpoint/starting_point.h"
#include "bimetal/comm/group.h"
#include "bimetal/data/digest.h"
#include "bimetal/membership/door.h"
#include "bimetal/membership/membership.h"
#include "bimetal/net/silence.h"
#include "bimetal/progress/members_change.h"
#include "bimetal/task/task.h"
#include "bimetal/train/rank_journal.h"

namespace bimetal::api {
namespace {

/// Somebody whom the others reach; nobody where they are all on this machine.
std::optional<net::Endpoint> somebody(const Start& start) {
  if (!start.doors.empty()) return membership::doors_in(start.doors).front();
  if (!start.rank || start.rank->on_one_machine()) return std::nullopt;
  return start.rank->master;
}

/// With a number of workers. Error(InvalidArgument) for options that make no sense.
ElasticOptions settled(ElasticOptions options) {
  if (options.min_workers == 0) options.min_workers = std::max(1, launch::elastic_minimum());
  const bool fits = options.max_workers == 0 || options.max_workers >= options.min_workers;
  if (options.min_workers >= 1 && options.max_workers >= 0 && fits) return options;
  throw Error(ErrorCode::InvalidArgument,
              fmt::format("ElasticOptions::min_workers is {} and max_workers {}: at least one is "
                          "needed, and no more than may be there",
                          options.min_workers, options.max_workers));
}

/// `options`: settled(). Errors: Unsupported for ranks that MPI connects; InvalidArgument for
/// BIMETAL_DOOR_PORT.
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

/// Everything that a newcomer must have in common with the others.
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

/// Each rank's step, by rank. Collective.
std::vector<std::int64_t> all_steps(comm::Group group, std::int64_t mine,
                                    std::chrono::milliseconds timeout) {
  std::vector<std::int64_t> all(static_cast<std::size_t>(group.size()));
  group
      .all_gather(comm::buffer(std::span(&mine, 1)), comm::buffer(std::span(all)),
                  Deadline::after(timeout))
      .wait();
  return all;
}

}  // namespace
}  // namespace bimetal::api

namespace bimetal {
namespace {

using membership::Membership;

/// Losses without anybody lost and without a step, after which an error is none.
constexpr int kInVain = 3;

void add_names(std::vector<std::string>& names, const std::vector<membership::Member>& members) {
  for (const auto& member : members) names.push_back(member.name);
}

}  // namespace

class ElasticLoop {
 public:
  /// The state that outlives a worker.
  struct Kept {
    task::ModelState model;
    torch::optim::Optimizer* optimizer;
  };

  ElasticLoop(const Job& job, std::optional<Kept> kept, const ElasticOptions& options)
      : session_(*job.session_),
        kept_(std::move(kept)),
        timeout_(options.timeout),
        members_(api::member_options(session_.start(), options)) {
    members_.wait_with([this] {
      if (session_.leaves()) throw Left();
    });
    members_.train(kept_ ? api::fingerprint(kept_->model, *kept_->optimizer) : "a loop");
    session_.begin_elastic([this] { return members_.somebody_waits(); },
                           kept_ ? kept_->optimizer : nullptr);
  }
  ~ElasticLoop() { session_.end_elastic(); }
  ElasticLoop(const ElasticLoop&) = delete;
  ElasticLoop& operator=(const ElasticLoop&) = delete;

  bool run(const ElasticTrain& train, int least) try {
    begin(least);
    while (true) {
      std::optional<Error> loss;
      std::vector<int> leaving;
      done_ = false;
      try {
        even_out();
        tell();
        train(at());
        done_ = true;
        auto group = session_.group();
        group.barrier(Deadline::after(timeout_)).wait();
        members_.finish();
        return true;
      } catch (const api::WorkersChange& change) {
        leaving = change.leaving;
      } catch (...) {
        loss = loss_or_fail();
      }
      if (std::ranges::find(leaving, session_.group().rank()) != leaving.end()) return false;
      if (!go_on(loss, leaving)) return true;
    }
  } catch (const Left&) {
    return false;
  }

 private:
  /// The program has asked to leave while this worker waited for others.
  struct Left {};

  int rank() const { return session_.group().rank(); }

  void begin(int least) {
    if (const auto& doors = session_.start().doors; !doors.empty()) {
      has_state_ = false;
      enter(members_.join(membership::doors_in(doors)));
      return;
    }
    if (session_.group().size() < least) {
      throw Error(ErrorCode::InvalidArgument,
                  fmt::format("ElasticOptions::min_workers is {}, and {} have started", least,
                              session_.group().size()));
    }
    members_.found(session_.group());
    enter(session_.group());
  }

  void enter(comm::Group group) {
    session_.enter(std::move(group));
    std::vector<std::string> doors;
    for (const auto& member : members_.roll().members) {
      doors.push_back(net::to_string(member.door));
    }
    session_.set_doors(std::move(doors));
    session_.observer().on_leading(rank() == 0);
  }

  std::optional<StartingPoint> at() const {
    const auto& reached = session_.reached();
    if (!kept_ || !reached) return std::nullopt;
    return StartingPoint{
        .step = reached->step, .position = reached->position, .seed = reached->seed};
  }

  /// To be called in a catch block: the exception as a loss of other workers. Any other exception
  /// ends the other workers, too, and is thrown on.
  std::optional<Error> loss_or_fail() {
    try {
      throw;
    } catch (const Error& error) {
      if (may_be_a_loss(error)) return error;
      fail(error.rank()
               ? error.what()
               : fmt::format("{}: {}", api::origin_of_failure(session_.group()), error.what()));
      throw;
    } catch (const std::exception& error) {
      fail(train::error_of(error, api::origin_of_failure(session_.group()), rank()).what());
      throw;
    } catch (...) {
      fail(fmt::format("rank {}: an exception has ended its loop", rank()));
      throw;
    }
  }

  /// If the same members come back again and again, nobody was lost.
  bool may_be_a_loss(const Error& error) {
    if (!membership::follows_from_a_loss(error) || members_.over()) return false;
    const bool in_vain = nobody_changed_ && session_.steps_done() == steps_then_;
    in_vain_ = in_vain ? in_vain_ + 1 : 0;
    steps_then_ = session_.steps_done();
    return in_vain_ < kInVain;
  }

  void fail(const std::string& text) noexcept {
    auto group = session_.group();
    group.abort(text);
    members_.fail({ErrorCode::Aborted, text, rank()});
  }

  /// To the next group. False where the others have come to the end, as this one has.
  bool go_on(const std::optional<Error>& loss, std::span<const int> leaving) {
    since_ = Stopwatch();
    if (loss) {
      auto group = session_.group();
      group.abort(fmt::format("rank {}: {}", rank(), loss->what()));  // so that all see it at once
      change_.cause = loss->what();
    }
    if (kept_) {
      for (auto& parameter : kept_->model.parameters) parameter.tensor.mutable_grad().reset();
    }
    try {
      auto next = members_.next(loss, leaving);
      add_names(change_.lost, next.lost);
      add_names(change_.left, next.left);
      add_names(change_.came, next.came);
      nobody_changed_ = next.lost.empty() && next.left.empty() && next.came.empty();
      changed_ = true;
      enter(std::move(next.group));
      return true;
    } catch (const Error& error) {
      if (done_ && error.code() == ErrorCode::PeerLost) return false;
      throw;
    }
  }

  /// Brings all to the state of the worker with most steps. Collective.
  void even_out() {
    if (!kept_) return;
    const auto group = session_.group();
    const auto steps = api::all_steps(group, has_state_ ? session_.steps_done() : -1, timeout_);
    const auto most = std::ranges::max_element(steps);
    if (*most < 0) throw Error(ErrorCode::PeerLost, "every worker that had the model is gone");
    if (std::ranges::all_of(steps, [&](std::int64_t made) { return made == *most; })) return;
    std::vector<bool> behind;
    for (const auto made : steps) behind.push_back(made < *most);
    const bool follows = behind[static_cast<std::size_t>(rank())];
    if (follows) has_state_ = false;  // until it has all of it
    const auto own = session_.reached().value_or(checkpoint::TrainingState());
    auto state =
        checkpoint::catch_up(group, behind, own, kept_->model, *kept_->optimizer, timeout_);
    if (follows && *most > 0) session_.set_reached(std::move(state));
    has_state_ = true;
  }

  void tell() {
    if (!std::exchange(changed_, false)) return;
    change_.step = session_.steps_done();
    change_.workers = session_.group().size();
    change_.seconds = since_.seconds();
    session_.observer().on_members(std::exchange(change_, {}));
  }

  api::Session& session_;
  std::optional<Kept> kept_;
  std::chrono::milliseconds timeout_;
  Membership members_;
  bool has_state_ = true;  ///< the kept state is the job's
  bool done_ = false;      ///< train() has come to its end
  progress::MembersChange change_;
  Stopwatch since_;
  bool changed_ = false, nobody_changed_ = false;
  int in_vain_ = 0;
  std::int64_t steps_then_ = 0;
};

bool elastic(const Job& job, const task::Model& model, torch::optim::Optimizer& optimizer,
             const ElasticTrain& train, const ElasticOptions& options) {
  model.to(job.device());
  const auto asked = api::settled(options);
  return ElasticLoop(job, ElasticLoop::Kept{model, &optimizer}, asked)
      .run(train, asked.min_workers);
}

bool elastic(const Job& job, const std::shared_ptr<torch::nn::Module>& model,
             torch::optim::Optimizer& optimizer, const ElasticTrain& train,
             const ElasticOptions& options) {
  const task::Model units{
      {task::make_unit("", model, std::function<task::Values(const task::Values&)>())}};
  return elastic(job, units, optimizer, train, options);
}

bool elastic(const Job& job, const std::function<void()>& train, const ElasticOptions& options) {
  const auto asked = api::settled(options);
  return ElasticLoop(job, std::nullopt, asked)
      .run([&](const auto&) { train(); }, asked.min_workers);
}

}  // namespace bimetal
