#include "bimetal/c10d/island.h"

#include <c10/core/StreamGuard.h>
#include <fmt/format.h>
#include <torch/csrc/api/include/torch/types.h>
#include <torch/csrc/api/include/torch/utils.h>

#include <algorithm>
#include <chrono>
#include <numeric>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "bimetal/base/error.h"
#include "bimetal/c10d/island_vendor.h"
#include "bimetal/comm/exchange.h"
#include "bimetal/comm/failure.h"

namespace bimetal::c10d {
namespace {

using std::chrono::milliseconds;

constexpr std::chrono::microseconds kLookAtCard{20};
// For what is under way at the end; for the fabric's word on what the vendor library only refuses.
constexpr std::chrono::seconds kLastOnes{2};
constexpr milliseconds kFabricsWord{300};

milliseconds left_of(Deadline deadline) {
  return std::max(std::chrono::ceil<milliseconds>(deadline.remaining()), milliseconds(1));
}

template <typename Options>
Options options_by(Deadline deadline) {
  Options options;
  options.timeout = left_of(deadline);
  return options;
}

::c10d::ReduceOp::RedOpType vendors(comm::ReduceOp op) {
  if (op == comm::ReduceOp::sum) return ::c10d::ReduceOp::SUM;
  if (op == comm::ReduceOp::max) return ::c10d::ReduceOp::MAX;
  throw Error(ErrorCode::Unsupported, "an island reduces to sums and to the largest");
}

comm::Buffer buffer_of(const torch::Tensor& host, comm::DType dtype) {
  return {host.data_ptr(), static_cast<std::size_t>(host.numel()), dtype};
}

/// The elements of ranks `begin` to `end`.
std::int64_t elements(const std::vector<std::size_t>& counts, int begin, int end) {
  return static_cast<std::int64_t>(
      std::accumulate(counts.begin() + begin, counts.begin() + end, std::size_t{0}));
}

/// One call for each member's part that is not empty, with that member's number.
template <typename Call>
std::vector<c10::intrusive_ptr<::c10d::Work>> by_owner(const std::vector<torch::Tensor>& members,
                                                       const Call& call) {
  std::vector<c10::intrusive_ptr<::c10d::Work>> works;
  for (std::size_t owner = 0; owner < members.size(); ++owner) {
    if (members[owner].numel() == 0) continue;
    std::vector<at::Tensor> one{members[owner]};
    works.push_back(call(one, static_cast<std::int64_t>(owner)));
  }
  return works;
}

}  // namespace

Island::Island(Places places, comm::Group members, BackendPtr vendor, comm::Group leaders,
               const torch::Device& device)
    : Island(std::move(places), std::move(members),
             vendor ? std::make_shared<VendorCalls>(vendor) : nullptr, std::move(leaders), device) {
}

Island::Island(Places places, comm::Group members, std::shared_ptr<VendorCalls> vendor,
               comm::Group leaders, const torch::Device& device)
    : places_(std::move(places)),
      members_(std::move(members)),
      vendor_(std::move(vendor)),
      leaders_(std::move(leaders)),
      staging_(device),
      device_(device) {
  const bool together = members_ && members_.size() > 1;
  const bool first = !together || members_.rank() == 0;
  if (static_cast<bool>(vendor_) != together || leads() != first) {
    throw Error(ErrorCode::InvalidArgument,
                "an island of several ranks needs a vendor library, and its first rank alone is "
                "among the leaders");
  }
  if (!device.is_cpu()) stream_ = device::stream_of_its_own(device);
}

/// What is under way is given up, where the others do not come to it.
Island::~Island() {
  const auto deadline = Deadline::after(kLastOnes);
  while (under_way_ > 0 && !deadline.expired()) std::this_thread::sleep_for(kLookAtCard);
  if (under_way_ > 0) give_up("this rank has given up the step");
}

std::shared_ptr<Island> Island::beside() const {
  const auto again = [](const comm::Group& group) {
    return group ? comm::group_of_its_own(group) : comm::Group();
  };
  auto members = again(members_);
  return std::shared_ptr<Island>(
      new Island(places_, std::move(members), vendor_, again(leaders_), device_));
}

bool Island::in_order() const {
  int next = 0;
  for (const auto& island : places_.islands) {
    for (const int rank : island) {
      if (rank != next++) return false;
    }
  }
  return true;
}

comm::Work Island::all_reduce(torch::Tensor flat, comm::DType dtype, Deadline deadline,
                              comm::ReduceOp op) {
  return later([this, flat = std::move(flat), dtype, deadline, op] {
    if (places_.islands.size() == 1) return reduce_everywhere(flat, deadline, op);
    reduce_to_leader(flat, deadline, op);
    if (leads()) {
      const auto host = on_host(flat);
      copy(flat, host, deadline);
      leaders_.all_reduce(buffer_of(host, dtype), op, deadline).wait();
      copy(host, flat, deadline);
    }
    spread_from_leader({flat}, deadline);
  });
}

comm::Work Island::gather(torch::Tensor flat, std::vector<std::size_t> counts, comm::DType dtype,
                          Deadline deadline) {
  return later([this, flat = std::move(flat), counts = std::move(counts), dtype, deadline] {
    const Parts parts = parts_of(flat, counts);
    gather_here(parts, flat, deadline);
    if (places_.islands.size() == 1) return;
    if (leads()) {
      const auto whole = on_host(flat);
      const auto here = parts.island_of(whole);
      copy(parts.island_of(flat), here, deadline);
      leaders_
          .all_gather(buffer_of(here, dtype), buffer_of(whole, dtype), by_island(counts), deadline)
          .wait();
      copy(parts.before(whole), parts.before(flat), deadline);
      copy(parts.behind(whole), parts.behind(flat), deadline);
    }
    spread_from_leader({parts.before(flat), parts.behind(flat)}, deadline);
  });
}

comm::Work Island::reduce_scatter(torch::Tensor flat, torch::Tensor own,
                                  std::vector<std::size_t> counts, comm::DType dtype,
                                  Deadline deadline) {
  return later([this, flat = std::move(flat), own = std::move(own), counts = std::move(counts),
                dtype, deadline] {
    const Parts parts = parts_of(flat, counts);
    if (places_.islands.size() == 1) return reduce_here(flat, own, parts, deadline);
    reduce_to_leader(flat, deadline);
    if (leads()) {
      const auto whole = on_host(flat);
      const auto here = parts.island_of(whole);
      copy(flat, whole, deadline);
      leaders_
          .reduce_scatter(buffer_of(whole, dtype), buffer_of(here, dtype), by_island(counts),
                          comm::ReduceOp::sum, deadline)
          .wait();
      copy(here, parts.island_of(flat), deadline);
    }
    spread_from_leader({parts.island_of(flat)}, deadline);
    copy(parts.own, own, deadline);
  });
}

comm::Work Island::later(std::function<void()> task) {
  auto state = std::make_shared<comm::Work::State>();
  ++under_way_;
  executor_.push([this, task = std::move(task), state]() mutable {
    std::optional<comm::Failure> failure;
    try {
      const torch::NoGradGuard no_grad;
      std::optional<c10::StreamGuard> guard;
      if (stream_) guard.emplace(*stream_);
      require_unbroken();
      task();
    } catch (...) {
      failure = failure_of(std::current_exception());
      fail(*failure);
    }
    task = nullptr;  // and its tensors
    --under_way_;
    state->finish(std::move(failure));
  });
  return comm::Work(std::move(state));
}

/// `flat` cut up by the ranks' counts.
Island::Parts Island::parts_of(const torch::Tensor& flat,
                               const std::vector<std::size_t>& counts) const {
  const auto here = std::ranges::find_if(places_.islands, [&](const auto& island) {
    return std::ranges::find(island, places_.rank) != island.end();
  });
  Parts parts{.begin = elements(counts, 0, here->front()),
              .end = elements(counts, 0, here->back() + 1)};
  auto begin = parts.begin;
  for (const int rank : *here) {
    const auto count = elements(counts, rank, rank + 1);
    parts.members.push_back(flat.narrow(0, begin, count));
    if (rank == places_.rank) parts.own = parts.members.back();
    begin += count;
  }
  return parts;
}

std::vector<std::size_t> Island::by_island(const std::vector<std::size_t>& counts) const {
  std::vector<std::size_t> sums;
  for (const auto& island : places_.islands) {
    sums.push_back(static_cast<std::size_t>(elements(counts, island.front(), island.back() + 1)));
  }
  return sums;
}

bool Island::Parts::equal() const {
  return std::ranges::all_of(members, [&](const torch::Tensor& member) {
    return member.numel() > 0 && member.numel() == own.numel();
  });
}

void Island::reduce_everywhere(const torch::Tensor& flat, Deadline deadline, comm::ReduceOp op) {
  with_vendor("all_reduce", deadline, [&](::c10d::Backend& library) {
    std::vector<at::Tensor> tensors{flat};
    auto options = options_by<::c10d::AllreduceOptions>(deadline);
    options.reduceOp = vendors(op);
    return Works{library.allreduce(tensors, options)};
  });
}

void Island::reduce_to_leader(const torch::Tensor& flat, Deadline deadline, comm::ReduceOp op) {
  if (!vendor_) return;
  with_vendor("reduce", deadline, [&](::c10d::Backend& library) {
    std::vector<at::Tensor> tensors{flat};
    auto options = options_by<::c10d::ReduceOptions>(deadline);
    options.reduceOp = vendors(op);
    return Works{library.reduce(tensors, options)};
  });
}

void Island::spread_from_leader(const std::vector<torch::Tensor>& tensors, Deadline deadline) {
  if (!vendor_) return;
  with_vendor("broadcast", deadline, [&](::c10d::Backend& library) {
    Works works;
    for (const auto& tensor : tensors) {
      if (tensor.numel() == 0) continue;
      std::vector<at::Tensor> one{tensor};
      works.push_back(library.broadcast(one, options_by<::c10d::BroadcastOptions>(deadline)));
    }
    return works;
  });
}

/// The vendor library's own call is for equal parts: others come from one owner after the other.
void Island::gather_here(const Parts& parts, const torch::Tensor& flat, Deadline deadline) {
  if (!vendor_) return;
  with_vendor("all_gather", deadline, [&](::c10d::Backend& library) {
    if (parts.equal()) {
      auto all = parts.island_of(flat), own = parts.own;
      return Works{
          library._allgather_base(all, own, options_by<::c10d::AllgatherOptions>(deadline))};
    }
    return by_owner(parts.members, [&](std::vector<at::Tensor>& one, std::int64_t owner) {
      auto options = options_by<::c10d::BroadcastOptions>(deadline);
      options.rootRank = owner;
      return library.broadcast(one, options);
    });
  });
}

/// Likewise, to one owner after the other.
void Island::reduce_here(const torch::Tensor& flat, torch::Tensor own, const Parts& parts,
                         Deadline deadline) {
  with_vendor("reduce_scatter", deadline, [&](::c10d::Backend& library) {
    if (parts.equal()) {
      auto all = flat;
      return Works{library._reduce_scatter_base(
          own, all, options_by<::c10d::ReduceScatterOptions>(deadline))};
    }
    return by_owner(parts.members, [&](std::vector<at::Tensor>& one, std::int64_t owner) {
      auto options = options_by<::c10d::ReduceOptions>(deadline);
      options.rootRank = owner;
      return library.reduce(one, options);
    });
  });
  if (!parts.equal()) copy(parts.own, own, deadline);
}

/// The cards wait for nobody: the fabric, which names who is lost or late, has seen all members
/// come before the vendor library, whose waiting occupies a card, is called.
template <typename Launch>
void Island::with_vendor(const char* what, Deadline deadline, const Launch& launch) {
  std::vector<std::int64_t> turn{0};
  members_.reduce(comm::buffer(turn), 0, comm::ReduceOp::max, deadline).wait();
  if (members_.rank() == 0) turn[0] = vendor_->next_turn();
  members_.broadcast(comm::buffer(turn), 0, deadline).wait();
  vendor_->in_turn(turn[0], deadline, [&](::c10d::Backend& library) {
    try {
      end_all(launch(library), what, deadline);
    } catch (const Error&) {
      throw;
    } catch (const std::exception& error) {
      require_members();
      throw Error(ErrorCode::System,
                  fmt::format("rank {} of its island: the vendor library's {} failed: {}",
                              members_.rank(), what, error.what()));
    }
  });
}

/// The fabric finds out meanwhile whether a member is lost, which the vendor library may not.
void Island::end_all(const Works& works, const char* what, Deadline deadline) const {
  for (const auto& work : works) {
    while (!work->isCompleted()) {
      if (const auto error = members_.error()) std::rethrow_exception(error);
      if (deadline.expired()) {
        throw Error(ErrorCode::Timeout,
                    fmt::format("rank {} of its island: the vendor library's {} has not ended in "
                                "time",
                                members_.rank(), what));
      }
      std::this_thread::sleep_for(kLookAtCard);
    }
    work->wait();
  }
}

/// Where one of them is lost, or has failed, the fabric's words say more than the vendor library's.
void Island::require_members() const {
  const auto deadline = Deadline::after(kFabricsWord);
  do {
    if (const auto error = members_.error()) std::rethrow_exception(error);
    std::this_thread::sleep_for(kLookAtCard);
  } while (!deadline.expired());
}

/// Memory of the host for as many elements: on the CPU they are there.
torch::Tensor Island::on_host(const torch::Tensor& flat) {
  if (device_.is_cpu()) return flat;
  const bool fits =
      host_.defined() && host_.scalar_type() == flat.scalar_type() && host_.numel() >= flat.numel();
  if (!fits) host_ = device::unset_host_buffer(flat.numel(), flat.scalar_type(), device_);
  return host_.narrow(0, 0, flat.numel());
}

void Island::copy(const torch::Tensor& from, const torch::Tensor& to, Deadline deadline) {
  if (from.numel() == 0 || from.data_ptr() == to.data_ptr()) return;
  auto target = to;
  if (to.is_cpu()) {
    staging_.to_host(from, target);
    return staging_.mark_to_host().wait(deadline);
  }
  staging_.to_device(from, target);
  staging_.mark_to_device().wait(deadline);
}

void Island::require_unbroken() const {
  const std::lock_guard lock(mutex_);
  if (failure_) throw failure_->to_error();
}

void Island::give_up(const std::string& reason) {
  fail({ErrorCode::Aborted, reason, std::nullopt});
}

/// Frees whoever waits for this rank, in the fabric or in the vendor library.
void Island::fail(const comm::Failure& failure) {
  {
    const std::lock_guard lock(mutex_);
    if (failure_) return;
    failure_ = failure;
  }
  if (members_) members_.abort(failure.message);
  if (leaders_) leaders_.abort(failure.message);
  if (vendor_) vendor_->fail(failure);
}

}  // namespace bimetal::c10d
