#include "bimetal/c10d/backend.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "bimetal/c10d/make_backend.h"
#include "bimetal/c10d/monitored_barrier.h"
#include "bimetal/c10d/worlds.h"

namespace bimetal::c10d {

using ::c10d::OpType;

BimetalBackend::BimetalBackend(comm::Group group, StorePtr store,
                               c10::intrusive_ptr<BackendOptions> options)
    : Backend(group.rank(), group.size()),
      process_(::getpid()),
      calls_(GroupCalls::of(std::move(group), store)),
      store_(std::move(store)),
      options_(std::move(options)) {
  init();
  worlds::add(this);
}

BimetalBackend::~BimetalBackend() {
  worlds::remove(this);
  if (::getpid() == process_) {
    calls_.order->give_up();
  } else {
    // A forked child has the group without its threads: to end it would wait for them.
    static_cast<void>(new GroupCalls(calls_));
  }
}

BimetalBackend::Milliseconds BimetalBackend::timeout_or_default(Milliseconds timeout) const {
  // torch's own sign for "not given" is negative; no time at all is what a caller may have left.
  return timeout >= Milliseconds::zero() ? timeout : options_->timeout;
}

BimetalBackend::WorkPtr BimetalBackend::finish_start(BackendWork::Description description,
                                                     Issue issue) {
  const bool message = ::c10d::isP2POp(description.type);
  if (!message) description.sequence = ++sequence_;
  description.inputs = issue.tensors.inputs();
  auto work = c10::make_intrusive<BackendWork>(std::move(description), calls_, !message);
  const Deadline deadline = issue.deadline;
  CallOrder::Call call{.begin =
                           [group = calls_.group, work, issue = std::move(issue)]() mutable {
                             auto works = begin(group, issue);
                             work->follow(works, [tensors = std::move(issue.tensors),
                                                  finish = std::move(issue.finish)]() mutable {
                               for (const auto& last : finish) last();
                               tensors.hand_back();
                             });
                           },
                       .fail = [work](const std::exception_ptr& error) { work->fail(error); },
                       .deadline = deadline};
  guarded([&] {
    if (message) {
      call.begin();  // matched by its tag
    } else {
      calls_.order->make(std::move(call));
    }
  });
  std::lock_guard lock(coalescing_mutex_);
  if (coalescing_) coalescing_->push_back(work);
  return work;
}

std::vector<comm::Work> BimetalBackend::begin(comm::Group& group, const Issue& issue) {
  std::vector<comm::Work> works;
  try {
    for (const auto& call : issue.calls) works.push_back(call(group, issue.deadline));
  } catch (...) {
    // What has begun already goes on, and needs its memory until it is done.
    for (const auto& work : works) {
      work.on_done([kept = issue.tensors, too = issue.finish](const std::exception_ptr&) {});
    }
    throw;
  }
  if (works.empty()) works.emplace_back();  // nothing to do: done at once
  return works;
}

void BimetalBackend::startCoalescing() {
  std::lock_guard lock(coalescing_mutex_);
  coalescing_.emplace();
}

BimetalBackend::WorkPtr BimetalBackend::endCoalescing() {
  std::vector<c10::intrusive_ptr<BackendWork>> parts;
  {
    std::lock_guard lock(coalescing_mutex_);
    if (!coalescing_) {
      throw BackendError(
          Error(ErrorCode::InvalidArgument, "endCoalescing() without startCoalescing()"));
    }
    parts = std::move(*coalescing_);
    coalescing_.reset();
  }
  BackendWork::Description description{
      .rank = rank_, .type = OpType::COALESCED, .sequence = sequence_};
  for (const auto& part : parts) {
    const auto outputs = part->result();
    description.outputs.insert(description.outputs.end(), outputs.begin(), outputs.end());
  }
  const bool ordered = std::ranges::all_of(parts, [](const auto& part) { return part->ordered(); });
  auto work = c10::make_intrusive<BackendWork>(std::move(description), calls_, ordered);
  if (parts.empty()) {
    work->follow({comm::Work()}, {});
  } else {
    work->follow(parts);
  }
  return work;
}

BimetalBackend::WorkPtr BimetalBackend::barrier(const ::c10d::BarrierOptions& opts) {
  return start(OpType::BARRIER, "bimetal:barrier", opts.timeout, {}, [](Issue& issue) {
    issue.calls.push_back([](comm::Group& group, Deadline by) { return group.barrier(by); });
  });
}

void BimetalBackend::monitoredBarrier(const ::c10d::BarrierOptions& opts, bool) {
  guarded([&] {
    const auto deadline = Deadline::after(timeout_or_default(opts.timeout));
    monitored_barrier(*store_, rank_, size_, ++monitored_barriers_, options_->global_ranks_in_group,
                      deadline);
  });
}

c10::intrusive_ptr<::c10d::Backend> BimetalBackend::split(const StorePtr& store,
                                                          const std::vector<int>& ranks,
                                                          const c10::intrusive_ptr<Options>& opts) {
  const auto place = std::ranges::find(ranks, rank_);
  if (place == ranks.end()) return nullptr;
  auto options =
      c10::make_intrusive<BackendOptions>(opts ? opts->timeout : Milliseconds(options_->timeout));
  options->group_name = opts ? opts->group_name : "split";
  for (const int rank : ranks) {
    const auto& global = options_->global_ranks_in_group;
    const auto at = static_cast<std::size_t>(rank);
    options->global_ranks_in_group.push_back(global.empty() ? at : global.at(at));
  }
  return make_backend(store->clone(), static_cast<int>(place - ranks.begin()),
                      static_cast<int>(ranks.size()), std::move(options));
}

void BimetalBackend::abort() {
  calls_.abort("the process group was aborted");
}

void BimetalBackend::shutdown() {
  calls_.close(Deadline::after(options_->timeout));
}

}  // namespace bimetal::c10d
