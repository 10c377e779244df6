// Frames of members that have proved the token and then send anything: whatever they announce, a
// payload has a place of its length or none, memory stays within the budget, and every posted
// receive ends when its group does.

#include <algorithm>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "bimetal/base/log.h"
#include "bimetal/comm/mailbox/mailbox.h"
#include "fuzz/targets.h"

namespace bimetal::fuzz {
namespace {

using comm::Call;
using net::FrameHeader;

constexpr int kSize = 3;  // this is rank 0
constexpr std::size_t kBudget = 1 << 16;

/// Takes bytes off the front; zeros when there are none left.
class Choices {
 public:
  explicit Choices(Bytes bytes) : bytes_(bytes) {}
  bool empty() const { return bytes_.empty(); }
  unsigned byte() {
    if (bytes_.empty()) return 0;
    const auto value = std::to_integer<unsigned>(bytes_.front());
    bytes_ = bytes_.subspan(1);
    return value;
  }
  unsigned below(unsigned limit) { return byte() % limit; }
  std::uint64_t number() {
    std::uint64_t value = 0;
    for (int i = 0; i < 8; ++i) value = value << 8 | byte();
    return value;
  }

 private:
  Bytes bytes_;
};

/// Remembers what the mailbox asks of it.
class FakeMesh : public net::Mesh {
 public:
  int rank() const noexcept override { return 0; }
  int size() const noexcept override { return kSize; }
  void start(net::FrameReceiver&) override {}
  void send(int peer, FrameHeader, std::span<const std::byte>, net::SendDone done) override {
    promise(peer > 0 && peer < kSize);
    if (done) done(nullptr);
  }
  void resume(int peer) override { resumed.push_back(peer); }
  void drop(int peer) override { dropped.push_back(peer); }
  void close(Deadline) override {}
  std::uint64_t bytes_sent() const noexcept override { return 0; }
  std::string host_of(int) const override { return "host"; }

  std::deque<int> resumed, dropped;
};

struct Listener : comm::GroupListener {
  void on_failure(const comm::Failure&, bool) override { failed = true; }
  void on_sign(int peer, std::uint64_t) override { promise(peer > 0 && peer < kSize); }
  void on_ring(int peer, std::uint32_t) override { promise(peer > 0 && peer < kSize); }
  bool failed = false;
};

class Rank {
 public:
  explicit Rank(Choices choices) : choices_(choices), mailbox_(mesh_, kBudget) {}

  void live() {
    while (!choices_.empty()) {
      act(choices_.below(8));
      settle();
    }
    listener_->failed = true;
    settle();
    for (const auto& receive : receives_) promise(*receive.ended || !entered_);
    if (entered_) mailbox_.remove_group(0, {});
  }

 private:
  struct Receive {
    std::unique_ptr<std::vector<std::byte>> memory;
    std::shared_ptr<bool> ended;
    std::uint64_t sequence;
  };

  void act(unsigned what) {
    if (what == 0 && !entered_) {
      entered_ = true;
      mailbox_.add_group(0, {0, 1, 2}, listener_);
    } else if (what == 1 && entered_ && !given_up_) {
      calls_.push_back(some_call());
      calls_.back().sequence = calls_.size() - 1;
      mailbox_.open_call(0, calls_.back());
    } else if (what == 2 && !calls_.empty() && !given_up_) {
      post();
    } else {
      offer(1 + static_cast<int>(choices_.below(kSize - 1)));
    }
  }

  Call some_call() {
    Call call;
    call.operation = choices_.below(2) ? comm::Operation::broadcast : comm::Operation::barrier;
    call.count = choices_.below(4);
    return call;
  }

  void post() {
    const Call& call = calls_[choices_.below(static_cast<unsigned>(calls_.size()))];
    const int peer = 1 + static_cast<int>(choices_.below(kSize - 1));
    Receive receive{std::make_unique<std::vector<std::byte>>(choices_.byte()),
                    std::make_shared<bool>(false), call.sequence};
    mailbox_.receive(peer, call.header_from(0, peer), *receive.memory, [ended = receive.ended] {
      promise(!*ended);
      *ended = true;
    });
    receives_.push_back(std::move(receive));
  }

  FrameHeader some_header() {
    FrameHeader header;
    header.kind = choices_.below(4) == 0 ? net::FrameKind::Abort : net::FrameKind::Data;
    if (const unsigned how = choices_.byte(); how < 128 && !calls_.empty()) {
      const Call& call = calls_[how % calls_.size()];
      const auto kind = header.kind;
      header = call.header_from(0, 1);
      header.kind = kind;
      header.part = choices_.below(3);
    } else {
      header.operation = static_cast<std::uint8_t>(choices_.byte());
      header.dtype = static_cast<std::uint8_t>(choices_.byte());
      header.reduce_op = static_cast<std::uint8_t>(choices_.byte());
      header.group = choices_.below(3);
      header.sequence = choices_.below(2) ? choices_.byte() : choices_.number();
      header.count = choices_.number();
      header.root = static_cast<int>(choices_.byte()) - 1;
      header.part = choices_.below(2) ? choices_.byte() : 0xffffffffu - choices_.below(8);
    }
    header.payload_bytes = choices_.below(8) == 0 ? choices_.number() : choices_.byte();
    return header;
  }

  void offer(int peer) {
    Peer& from = peers_[static_cast<std::size_t>(peer)];
    if (from.lost || from.waiting) return;
    deliver(peer, some_header());
  }

  void deliver(int peer, const FrameHeader& header) {
    Peer& from = peers_[static_cast<std::size_t>(peer)];
    const auto placement = mailbox_.on_header(peer, header);
    if (placement.pause) {
      from.waiting = header;
      return;
    }
    promise(placement.bytes.size() == header.payload_bytes);
    promise(header.payload_bytes <= comm::kMaxPartBytes);
    std::ranges::generate(placement.bytes, [&] { return static_cast<std::byte>(choices_.byte()); });
    mailbox_.on_payload(peer, header);
  }

  /// Acts as the mesh and the group's core would.
  void settle() {
    for (;;) {
      if (entered_ && listener_->failed && !given_up_) {
        given_up_ = true;
        mailbox_.fail_group(0);
      } else if (!mesh_.dropped.empty()) {
        const int peer = mesh_.dropped.front();
        mesh_.dropped.pop_front();
        Peer& from = peers_[static_cast<std::size_t>(peer)];
        if (std::exchange(from.lost, true)) continue;
        from.waiting.reset();
        mailbox_.on_lost(peer, Error(ErrorCode::PeerLost, "dropped", peer));
      } else if (!mesh_.resumed.empty()) {
        const int peer = mesh_.resumed.front();
        mesh_.resumed.pop_front();
        Peer& from = peers_[static_cast<std::size_t>(peer)];
        if (!from.waiting || from.lost) continue;
        deliver(peer, *std::exchange(from.waiting, std::nullopt));
      } else {
        return;
      }
    }
  }

  struct Peer {
    std::optional<FrameHeader> waiting;  ///< paused before its payload
    bool lost = false;
  };

  Choices choices_;
  FakeMesh mesh_;
  comm::Mailbox mailbox_;
  std::shared_ptr<Listener> listener_ = std::make_shared<Listener>();
  std::vector<Call> calls_;
  std::vector<Receive> receives_;
  std::vector<Peer> peers_{kSize};
  bool entered_ = false;
  bool given_up_ = false;
};

}  // namespace

void mailbox(Bytes bytes) {
  Rank(Choices(bytes)).live();
}

}  // namespace bimetal::fuzz
