#pragma once
// Matches arriving frames with posted receives, so that a payload arrives in its destination
// without a copy. A frame that comes before its receive is kept, up to a budget per peer; beyond it
// the peer is paused. Every frame is checked against the call that this rank made.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "bimetal/comm/mailbox/inbox.h"
#include "bimetal/net/mesh.h"

namespace bimetal::comm {

/// Thread-safe. Serves every group of one mesh. Ranks are world ranks here.
class Mailbox : public net::FrameReceiver {
 public:
  /// The bytes that a peer may send ahead of the receives.
  static constexpr std::size_t kBudgetPerPeer = std::size_t{256} << 20;

  explicit Mailbox(net::Mesh& mesh, std::size_t budget_per_peer = kBudgetPerPeer);

  /// members[r] is the world rank of the group's rank r.
  void add_group(std::uint32_t group, const std::vector<int>& members,
                 std::weak_ptr<GroupListener> listener);

  /// Gives up every posted receive (its `done` runs once nothing writes to it any more) and throws
  /// away what arrives for the group from now on.
  void fail_group(std::uint32_t group);

  /// Forgets a group that is gone on this rank; nothing may be posted in it any more. Members that
  /// connect with this rank later are told `last_words` (failure.h).
  void remove_group(std::uint32_t group, std::vector<std::byte> last_words);

  /// A collective call begins, so that frames are checked against it, or has ended. Calls of a
  /// group begin in the order of their sequence, from 0.
  void open_call(std::uint32_t group, const Call& call);
  void finish_call(std::uint32_t group, std::uint64_t sequence);

  /// A failure if `peer`, for which the call of `expected` waits, has left the group.
  std::optional<Failure> departed(const net::FrameHeader& expected, int peer);

  /// Posts `into` for frames of `expected` from `peer`; `done` runs once. Receives of one stream
  /// are filled in the order of these calls, which must not be concurrent. With `combine` what
  /// arrives is combined with what `into` holds, frame by frame, on the thread that brought it and
  /// while it is in that processor's cache; it must not throw.
  void receive(int peer, const net::FrameHeader& expected, std::span<std::byte> into,
               std::function<void()> done, Combine combine = {});

  /// The same for the first message of `expected`'s tag, from any rank of the group. `matched` is
  /// told before anything of it is there, with the lock held. Messages go to the receives of both
  /// kinds in the order in which these were posted.
  void receive_from_anybody(const net::FrameHeader& expected, std::span<std::byte> into,
                            std::function<void(int peer)> matched, std::function<void()> done);

  Placement on_header(int peer, const net::FrameHeader& header) override;
  void on_payload(int peer, const net::FrameHeader& header) override;
  void on_lost(int peer, const Error& error) override;
  void on_open(int peer) override;

 private:
  /// Holds the lock; runs deferred work, in order, after giving it back.
  class Section {
   public:
    explicit Section(Mailbox& mailbox) : lock_(mailbox.mutex_) {}
    ~Section() {
      lock_.unlock();
      for (auto& action : actions_) action();
    }
    void later(std::function<void()> action) { actions_.push_back(std::move(action)); }

   private:
    std::unique_lock<std::mutex> lock_;
    std::vector<std::function<void()>> actions_;
  };

  /// Where the payload of a frame under way goes.
  struct ThrownAway {};
  struct AbortPayload {
    std::vector<std::byte> bytes;
  };
  struct RingOffer {
    std::vector<std::byte> bytes;
  };
  /// A group that is gone on this rank.
  struct Removed {
    std::set<int> members;  ///< world ranks
    std::shared_ptr<const std::vector<std::byte>> last_words;
  };
  using Destination = std::variant<ThrownAway, AbortPayload, RingOffer, ArrivedFrame,
                                   std::shared_ptr<PostedReceive>>;

  struct Peer {
    Destination current;             ///< between on_header and on_payload
    std::size_t offset = 0;          ///< where in a posted receive that payload belongs
    std::vector<std::byte> staging;  ///< a payload under way that is to be combined
    std::vector<std::byte> sink;     ///< bytes that are thrown away
    std::size_t buffered = 0;        ///< of the budget
    bool paused = false;
    std::optional<Failure> lost;
  };

  // Handles frames that the mesh brings: mailbox_frames.cpp.
  Placement place_abort(int peer, const net::FrameHeader& header, Section& section);
  Placement place_data(int peer, const net::FrameHeader& header, Section& section);
  Placement throw_away(int peer, const net::FrameHeader& header);
  Placement keep(int peer, const net::FrameHeader& header);
  Placement refuse(int peer, const std::string& what, Section& section);
  void take_frame(int peer, ArrivedFrame frame, Section& section);
  void take_abort(int peer, std::uint32_t group, std::span<const std::byte> payload,
                  Section& section);
  void take_farewell(Inbox& box, int peer, Section& section);
  void combine_staged(int peer, const net::FrameHeader& header);
  void landed(const std::shared_ptr<PostedReceive>& receive, std::size_t bytes, Section& section);

  // Receives from anybody: mailbox_memory.cpp.
  void match(Inbox& box, const Stream::Key& key);
  std::optional<int> first_sender(const Inbox& box, std::uint64_t tag) const;
  void check_senders(Inbox& box, Section& section);

  // Handles data that lies in memory: mailbox_memory.cpp.
  Placement place_ring_word(Inbox& box, int peer, const net::FrameHeader& header, Section& section);
  Placement take_placed(int peer, net::FrameHeader header);
  void tell_ring(Inbox& box, int peer, std::uint32_t word, Section& section);
  void forgo_rings(int peer, Section& section);
  void answer_offer(int peer, std::uint32_t group, std::span<const std::byte> payload);
  void say(int peer, std::uint32_t group, std::uint32_t word);

  // Checks; what does not belong ends the group.
  bool belongs_to_call(Inbox& box, int peer, const net::FrameHeader& header, Section& section);
  bool belongs_to_receive(Inbox& box, const PostedReceive& receive, int peer,
                          const net::FrameHeader& header, Section& section);
  void report(Inbox& box, Failure failure, bool tell_others, Section& section);
  Failure departure(int peer, const net::FrameHeader& expected) const;

  void take_sign(Inbox& box, int peer, const net::FrameHeader& header, Section& section);
  void release(int peer, const ArrivedFrame& frame, Section& section);
  void resume(int peer, Section& section);
  void drop_frames(Inbox& box, Section& section);
  void fill(int peer, const std::shared_ptr<PostedReceive>& receive);

  net::Mesh& mesh_;
  const std::size_t budget_;
  std::mutex mutex_;
  std::vector<Peer> peers_;
  std::map<std::uint32_t, Inbox> inboxes_;
  std::map<std::uint32_t, Removed> removed_;  ///< their frames are thrown away
};

}  // namespace bimetal::comm
