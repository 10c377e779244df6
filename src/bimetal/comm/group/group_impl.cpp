#include "bimetal/comm/group/group_impl.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <map>
#include <new>
#include <utility>

#include "bimetal/comm/parts.h"

namespace bimetal::comm {
namespace {

// How long a dropped group waits for calls in flight.
constexpr std::chrono::seconds kLastWait{2};
// How long a group's last words (why it failed, or farewell) may take to leave.
constexpr std::chrono::milliseconds kLastWords{250};

Failure failure_of(const std::exception_ptr& thrown, int rank) {
  try {
    std::rethrow_exception(thrown);
  } catch (const Error& error) {
    return Failure{error.code(), error.what(), error.rank()};
  } catch (const std::bad_alloc&) {
    return Failure{ErrorCode::OutOfMemory,
                   fmt::format("rank {} has no memory left for a collective's buffers", rank),
                   rank};
  } catch (const std::exception& error) {
    return Failure{ErrorCode::Internal, fmt::format("rank {}: {}", rank, error.what()), rank};
  }
}

bool leaves_host(const GroupCore& core, const net::Mesh& mesh) {
  return std::ranges::any_of(core.members(), [&](int member) {
    return member != mesh.rank() && !mesh.stays_on_host(member);
  });
}

// The group's ranks by the names of their hosts, which are the same on all of them.
std::vector<std::vector<int>> hosts_of(const GroupCore& core, const net::Mesh& mesh) {
  std::vector<std::vector<int>> hosts;
  std::map<std::string, std::size_t> places;
  for (int rank = 0; rank < core.size(); ++rank) {
    const auto [place, added] =
        places.try_emplace(mesh.host_of(core.world_rank(rank)), hosts.size());
    if (added) hosts.emplace_back();
    hosts[place->second].push_back(rank);
  }
  return hosts;
}

}  // namespace

Group::Impl::Impl(std::shared_ptr<Fabric> fabric, std::uint32_t id, std::vector<int> members,
                  GroupOptions options)
    : fabric_(std::move(fabric)),
      core_(std::make_shared<GroupCore>(id, std::move(members), options.epoch, *fabric_)),
      options_(options),
      all_reducer_(options.algorithm, leaves_host(*core_, fabric_->mesh()),
                   hosts_of(*core_, fabric_->mesh())) {
  fabric_->open_group();
  if (core_->size() > 1) executor_ = std::make_unique<Executor>();
  core_->enter();
}

Group::Impl::~Impl() {
  close(Deadline::after(kLastWait));
}

Deadline Group::Impl::deadline_or_default(std::optional<Deadline> deadline) const {
  return deadline.value_or(Deadline::after(options_.timeout));
}

Work Group::Impl::run(Call call, Operands operands, std::optional<Deadline> deadline, Body body) {
  std::unique_lock lock(issue_mutex_);
  if (!whole_team()) return issue(std::move(call), deadline, std::move(body), std::move(lock));
  if (const auto work = run_at_once(call, operands, deadline)) return *work;
  auto in_memory = in_shared_memory(call, operands);
  return issue(std::move(call), deadline, std::move(in_memory), std::move(lock));
}

Work Group::Impl::run(Call call, std::optional<Deadline> deadline, Body body) {
  return issue(std::move(call), deadline, std::move(body), std::unique_lock(issue_mutex_));
}

Work Group::Impl::issue(Call call, std::optional<Deadline> deadline, Body body,
                        std::unique_lock<std::mutex> lock) {
  const auto flight = core_->start(std::move(call), deadline_or_default(deadline));
  if (flight->work->done()) return Work(flight->work);
  if (executor_) {
    executor_->push([this, flight, body = std::move(body)] { run_now(flight, body); });
  } else {
    lock.unlock();
    run_now(flight, body);
  }
  return Work(flight->work);
}

void Group::Impl::run_now(const std::shared_ptr<Flight>& flight, const Body& body) {
  std::optional<Failure> failure = flight->transfers.failure();
  if (!failure) {
    core_->note_start(*flight);
    try {
      Channel channel(*core_, flight);
      body(channel);
    } catch (...) {
      failure = failure_of(std::current_exception(), fabric_->mesh().rank());
      core_->fail(*failure, true);
    }
  }
  flight->transfers.wait_idle();
  core_->finish(flight, std::move(failure));
}

Work Group::Impl::send(Call call, ConstBuffer data, int peer, std::optional<Deadline> deadline) {
  const std::span bytes(static_cast<const std::byte*>(data.data), data.bytes());
  std::unique_lock lock(issue_mutex_);  // parts of two messages must not mingle
  const auto flight = core_->start(std::move(call), deadline_or_default(deadline));
  if (flight->work->done()) return Work(flight->work);
  core_->note_start(*flight);
  try {
    std::uint32_t number = 0;
    for (const auto part : parts_of(bytes)) core_->send(flight, peer, number++, part);
  } catch (const Error&) {
    // The group failed meanwhile; finish_message tells.
  }
  lock.unlock();
  finish_message(flight);
  return Work(flight->work);
}

Work Group::Impl::recv(Call call, Buffer data, int peer, std::optional<Deadline> deadline) {
  const std::span bytes(static_cast<std::byte*>(data.data), data.bytes());
  std::unique_lock lock(issue_mutex_);  // receives of a tag are matched in order
  const auto flight = core_->start(std::move(call), deadline_or_default(deadline));
  if (flight->work->done()) return Work(flight->work);
  core_->note_start(*flight);
  try {
    if (peer < 0) {
      core_->receive_from_anybody(flight, bytes);
    } else {
      core_->receive(flight, peer, bytes);
    }
  } catch (const Error&) {
    // The group failed meanwhile; finish_message tells.
  }
  lock.unlock();
  finish_message(flight);
  return Work(flight->work);
}

void Group::Impl::finish_message(const std::shared_ptr<Flight>& flight) {
  flight->transfers.when_idle(
      [core = core_, flight] { core->finish(flight, flight->transfers.failure()); });
}

void Group::Impl::close(Deadline deadline) {
  std::lock_guard lock(close_mutex_);
  if (std::exchange(closed_, true)) return;
  if (!core_->failure() && !core_->wait_idle(deadline)) {
    core_->fail(
        {ErrorCode::Aborted,
         fmt::format("rank {} closed the group while calls were in flight", fabric_->mesh().rank()),
         fabric_->mesh().rank()},
        true);
  }
  bool failed;
  {
    std::lock_guard issue(issue_mutex_);  // no call is half made
    failed = core_->end();
  }
  executor_.reset();
  core_->wait_idle(Deadline::after(kLastWait));
  core_->leave(!failed);
  // The last words get their time even if the deadline has gone by.
  const Deadline last_words = Deadline::after(kLastWords);
  fabric_->close_group(failed || deadline.time() < last_words.time() ? last_words : deadline);
}

}  // namespace bimetal::comm
