#include "bimetal/c10d/card_to_card.h"

#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/format.h>

#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "bimetal/base/deadline.h"
#include "bimetal/base/error.h"
#include "bimetal/c10d/torch_bridge.h"
#include "bimetal/comm/exchange.h"
#include "bimetal/comm/failure.h"
#include "bimetal/device/staging.h"

namespace bimetal::c10d {
namespace {

using std::chrono::milliseconds;

// For the other side's end, of what has ended on this side.
constexpr std::chrono::seconds kBothEnded{1};
constexpr std::chrono::milliseconds kReason{300};
constexpr std::chrono::microseconds kLook{20};
constexpr const char* kClosed = "this rank has given up the step";

torch::Tensor bytes_of(const torch::Tensor& tensor) {
  return tensor.detach().view({-1}).view(torch::kUInt8);
}

}  // namespace

struct CardToCard::Transfer {
  torch::Tensor bytes;
  bool sends;
  std::uint64_t tag;
  /// What this rank tells and hears: how many bytes, from the lower rank in which turn; and of the
  /// end.
  Note told = 0, heard = 0, ended = 0, ended_there = 0;
  std::shared_ptr<comm::Work::State> state = std::make_shared<comm::Work::State>();

  void finish(std::optional<comm::Failure> failure) {
    bytes = torch::Tensor();
    state->finish(std::move(failure));
  }
};

/// Transfers between this rank and one other, both ways: one at a time.
class CardToCard::Lane : public std::enable_shared_from_this<Lane> {
 public:
  Lane(comm::Group group, int peer, BackendPtr vendor, const std::optional<c10::Stream>& stream,
       milliseconds timeout)
      : group_(std::move(group)),
        peer_(peer),
        leads_(group_.rank() < peer),
        vendor_(std::move(vendor)),
        stream_(stream),
        timeout_(timeout),
        executor_(std::in_place) {}

  void offer(const TransferPtr& transfer);
  void soon(std::function<void()> task);
  void close();

 private:
  comm::Work tell(const TransferPtr& transfer, const Note& note);
  comm::Work hear(const TransferPtr& transfer, Note& note);
  void agreed(const TransferPtr& transfer, const std::exception_ptr& error);
  void run(const TransferPtr& transfer);
  void carry(const TransferPtr& transfer);
  void launch_and_wait(Transfer& transfer, const comm::Work& other_side);
  void give_up(const std::string& reason);
  void abort_vendor();

  comm::Group group_;
  const int peer_;
  const bool leads_;
  BackendPtr vendor_;
  const std::optional<c10::Stream> stream_;
  const milliseconds timeout_;

  std::mutex mutex_;
  bool closed_ = false;
  Note turn_ = 0;                        ///< the next one
  std::map<Note, TransferPtr> waiting_;  ///< where the other rank leads: those whose turn comes
  std::string failure_;

  std::atomic<bool> closing_{false}, under_way_{false};
  std::optional<comm::Executor> executor_;  ///< its tasks use all of the above
};

/// From now on this side can. The follower says so; the leader hears it, and says when it is.
void CardToCard::Lane::offer(const TransferPtr& transfer) {
  comm::Work word;
  {
    const std::lock_guard lock(mutex_);
    if (closed_) {
      return transfer->finish({{ErrorCode::Aborted, kClosed, std::nullopt}});
    }
    if (!leads_) {
      transfer->told = transfer->bytes.numel();
      tell(transfer, transfer->told);
    }
    word = hear(transfer, transfer->heard);
  }
  word.on_done([lane = weak_from_this(), transfer](const std::exception_ptr& error) {
    if (const auto self = lane.lock()) self->agreed(transfer, error);
  });
}

void CardToCard::Lane::soon(std::function<void()> task) {
  const std::lock_guard lock(mutex_);
  if (!closed_) executor_->push(std::move(task));
}

comm::Work CardToCard::Lane::tell(const TransferPtr& transfer, const Note& note) {
  auto work = group_.send(comm::buffer(std::span<const Note>(&note, 1)), peer_, transfer->tag,
                          Deadline::after(comm::kPosted));
  work.on_done([transfer](const std::exception_ptr&) {});
  return work;
}

comm::Work CardToCard::Lane::hear(const TransferPtr& transfer, Note& note) {
  auto work = group_.recv(comm::buffer(std::span<Note>(&note, 1)), peer_, transfer->tag,
                          Deadline::after(comm::kPosted));
  work.on_done([transfer](const std::exception_ptr&) {});
  return work;
}

/// Both sides can: the leader's order is that in which it learns so. On one of the fabric's
/// threads, or on the caller's.
void CardToCard::Lane::agreed(const TransferPtr& transfer, const std::exception_ptr& error) {
  if (error) return transfer->finish(failure_of(error));
  const std::lock_guard lock(mutex_);
  if (closed_) return transfer->finish({{ErrorCode::Aborted, kClosed, std::nullopt}});
  if (leads_) {
    transfer->told = turn_++;
    tell(transfer, transfer->told);
    executor_->push([this, transfer] { run(transfer); });
    return;
  }
  waiting_.emplace(transfer->heard, transfer);
  for (auto next = waiting_.find(turn_); next != waiting_.end(); next = waiting_.find(++turn_)) {
    executor_->push([this, taken = std::move(next->second)] { run(taken); });
    waiting_.erase(next);
  }
}

void CardToCard::Lane::run(const TransferPtr& transfer) {
  under_way_ = true;
  try {
    carry(transfer);
  } catch (...) {
    const auto failure = failure_of(std::current_exception());
    give_up(failure.message);
    transfer->finish(failure);
  }
  under_way_ = false;
}

void CardToCard::Lane::carry(const TransferPtr& transfer) {
  if (!failure_.empty()) throw Error(ErrorCode::Aborted, failure_);
  if (closing_) throw Error(ErrorCode::Aborted, kClosed);
  if (leads_ && transfer->heard != transfer->bytes.numel()) {
    throw Error(ErrorCode::CallMismatch, fmt::format("{} bytes meet {} bytes of the other rank",
                                                     transfer->bytes.numel(), transfer->heard));
  }
  // By this a rank hears that the other one is lost, or has failed.
  const auto other_side = hear(transfer, transfer->ended_there);
  launch_and_wait(*transfer, other_side);
  tell(transfer, transfer->ended);
  transfer->finish({});
  // Behind it the vendor library may be given up: the other side has no use for it, either.
  other_side.wait_until(Deadline::after(kBothEnded));
}

void CardToCard::Lane::launch_and_wait(Transfer& transfer, const comm::Work& other_side) {
  const auto deadline = Deadline::after(timeout_);
  const char* const what = transfer.sends ? "send" : "recv";
  const int other = leads_ ? 1 : 0;
  // Where it fails because the other side has given up, that one says why.
  const auto refused = [&](const std::exception& error) {
    if (other_side.wait_until(Deadline::after(kReason))) other_side.wait();
    return Error(ErrorCode::System,
                 fmt::format("the vendor library's {} failed: {}", what, error.what()));
  };
  c10::intrusive_ptr<::c10d::Work> work;
  std::optional<c10::StreamGuard> guard;
  if (stream_) guard.emplace(*stream_);
  try {
    std::vector<at::Tensor> tensors{transfer.bytes};
    work = transfer.sends ? vendor_->send(tensors, other, 0) : vendor_->recv(tensors, other, 0);
  } catch (const std::exception& error) {
    throw refused(error);
  }
  while (!work->isCompleted()) {
    if (other_side.error()) other_side.wait();
    if (closing_) throw Error(ErrorCode::Aborted, kClosed);
    if (deadline.expired()) {
      throw Error(ErrorCode::Timeout,
                  fmt::format("the vendor library's {} has not ended within {} s", what,
                              std::chrono::duration<double>(timeout_).count()));
    }
    std::this_thread::sleep_for(kLook);
  }
  try {
    work->wait();
  } catch (const std::exception& error) {
    throw refused(error);
  }
}

/// Frees whoever waits for this rank, in the fabric or in the vendor library.
void CardToCard::Lane::give_up(const std::string& reason) {
  if (!failure_.empty()) return;
  failure_ = reason;
  if (!closing_) group_.abort(reason);
  abort_vendor();
}

void CardToCard::Lane::abort_vendor() {
  try {
    vendor_->abort();
  } catch (const std::exception&) {
    // What it had to do is over, or has failed already; the first reason counts.
  }
}

/// What comes of the fabric later finds nothing: a callback must not be the last owner of a group.
void CardToCard::Lane::close() {
  closing_ = true;
  const auto deadline = Deadline::after(2 * kBothEnded);
  while (under_way_ && !deadline.expired()) std::this_thread::sleep_for(kLook);
  if (under_way_) abort_vendor();  // it hangs in a call
  comm::Group group;
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    waiting_.clear();
  }
  executor_.reset();
  abort_vendor();
  vendor_.reset();
  const std::lock_guard lock(mutex_);
  group = std::exchange(group_, {});
}

CardToCard::CardToCard(comm::Group group, const torch::Device& device,
                       std::map<int, BackendPtr> pairs, milliseconds timeout)
    : device_(device), timeout_(timeout) {
  if (!device.is_cpu()) stream_ = device::stream_of_its_own(device);
  for (auto& [peer, vendor] : pairs) {
    lanes_.emplace(peer, std::make_shared<Lane>(group, peer, std::move(vendor), stream_, timeout));
  }
  computed_.emplace();
}

CardToCard::~CardToCard() {
  closing_ = true;
  computed_.reset();
  for (auto& [peer, lane] : lanes_) lane->close();
}

torch::Tensor CardToCard::room(torch::IntArrayRef sizes, torch::ScalarType dtype) const {
  std::optional<c10::StreamGuard> guard;
  if (stream_) guard.emplace(*stream_);
  return torch::empty(sizes, torch::TensorOptions(dtype).device(device_));
}

void CardToCard::hand_over(const torch::Tensor& received) const {
  if (received.is_cpu()) return;
  const c10::impl::VirtualGuardImpl guard(device_.type());
  guard.recordDataPtrOnStream(received.storage().data_ptr(), guard.getStream(received.device()));
}

comm::Work CardToCard::send(const torch::Tensor& tensor, int peer, std::uint64_t tag) {
  const auto transfer = std::make_shared<Transfer>(Transfer{bytes_of(tensor), true, tag});
  comm::Work work(transfer->state);
  const auto deadline = Deadline::after(timeout_);
  auto mark = std::make_shared<device::CopyMark>(device::mark_current_stream(tensor.device()));
  computed_->push([this, transfer, deadline, mark, lane = lanes_.at(peer)] {
    try {
      while (!mark->passed()) {
        if (closing_) throw Error(ErrorCode::Aborted, kClosed);
        if (deadline.expired()) mark->wait(deadline);  // throws
        std::this_thread::sleep_for(kLook);
      }
    } catch (...) {
      return transfer->finish(failure_of(std::current_exception()));
    }
    lane->offer(transfer);
  });
  return work;
}

comm::Work CardToCard::recv(const torch::Tensor& room, int peer, std::uint64_t tag) {
  const auto transfer = std::make_shared<Transfer>(Transfer{bytes_of(room), false, tag});
  comm::Work work(transfer->state);
  lanes_.at(peer)->offer(transfer);
  return work;
}

void CardToCard::soon(int peer, std::function<void()> task) {
  lanes_.at(peer)->soon(std::move(task));
}

std::shared_ptr<CardToCard> connect_cards(comm::Group group, const torch::Device& device,
                                          const VendorLibrary& library,
                                          const std::function<bool(int lower, int higher)>& talk,
                                          milliseconds timeout) {
  std::map<int, BackendPtr> pairs;
  for (const auto& island : plan_islands(exchange_offers(group, library.offer), group.topology())) {
    for (auto lower = island.begin(); lower != island.end(); ++lower) {
      for (auto higher = lower + 1; higher != island.end(); ++higher) {
        if (!talk(*lower, *higher)) continue;
        const auto members = group.subgroup({*lower, *higher});
        auto vendor = connect_all(group, members, library.connect);
        if (vendor) pairs.emplace(group.rank() == *lower ? *higher : *lower, std::move(vendor));
      }
    }
  }
  if (pairs.empty()) return nullptr;
  return std::make_shared<CardToCard>(std::move(group), device, std::move(pairs), timeout);
}

}  // namespace bimetal::c10d
