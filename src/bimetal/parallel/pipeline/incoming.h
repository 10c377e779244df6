#pragma once
// What a stage gets from another one: a message of several values, which arrives while the stage
// computes.

#include <torch/csrc/api/include/torch/types.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bimetal/base/deadline.h"
#include "bimetal/base/error.h"
#include "bimetal/c10d/card_to_card.h"
#include "bimetal/comm/group.h"
#include "bimetal/parallel/mesh/mesh.h"
#include "bimetal/parallel/pipeline/activation_codec.h"
#include "bimetal/parallel/pipeline/wait_for_peer.h"
#include "bimetal/task/unit.h"

namespace bimetal::parallel::pipeline {

/// Names a message of a step: a piece's output for a micro-batch.
struct MessageName {
  std::int64_t step = 0;
  bool forward = true;  ///< activations; else gradients
  int piece = 0;        ///< that computed it
  int micro_batch = 0;
};

/// Values that come from another stage. A handle: values that were asked for arrive, whether or not
/// somebody still waits. It must not outlive the link.
class Incoming {
 public:
  struct State;
  Incoming() = default;
  explicit Incoming(std::shared_ptr<State> state) : state_(std::move(state)) {}

  explicit operator bool() const noexcept { return state_ != nullptr; }

  /// Blocks. On the device; leaves that require gradients where they did at the sender. Nothing if
  /// the sender has none to give (see Link::send_nothing). Errors: the fabric's, naming both
  /// stages; CallMismatch where the sender shortens them by another scheme; Timeout once the
  /// deadline of waiting has passed. If there is no memory for them, that error is thrown, and
  /// nothing is lost: they can be waited for once more.
  std::optional<task::Values> wait();

  /// The same for a stage that will not compute with them, but must take them: on the host, of the
  /// right shapes and types, whatever they hold.
  std::optional<task::Values> wait_on_host();

 private:
  std::shared_ptr<State> state_;
};

// What both sides of a link know of a message. For this folder alone.

inline constexpr int kDescription = 63;  ///< parts of a message; values count from 0

std::uint64_t tag_of(const MessageName& name, int part);

/// The scheme by which a value of this message goes over a link of `scheme`. A value that no
/// gradient flows through may be a mask, of which nothing may be lost.
comm::Scheme scheme_of_sent(comm::Scheme scheme, const MessageName& name,
                            const torch::Tensor& value, bool requires_grad);

/// Whether values of this scheme go from card to card: what is shortened is so on the host.
bool goes_by_card(const c10d::CardToCard* cards, int peer, const torch::Tensor& value,
                  comm::Scheme scheme);

/// What has gone wrong, in the words of who waits for `rank`. A vendor library that waits too long
/// does not know for whom.
Error retold(const Error& error, const std::string& what, int rank);

/// Keeps tensors alive until the operation that uses them is done.
template <typename Kept>
comm::Work keeping(comm::Work work, Kept kept) {
  work.on_done([kept = std::move(kept)](std::exception_ptr) {});
  return work;
}

/// Private to the link, which makes it and knows what is asked for.
struct Incoming::State {
  const Mesh* mesh = nullptr;
  comm::Group group;
  int peer = 0;
  MessageName name;
  torch::Device device{torch::kCPU};
  Patience patience;
  std::string awaited;  ///< for messages
  comm::Scheme scheme = comm::Scheme::none;
  double unit = 1;  ///< of shortened values
  c10d::CardToCard* cards = nullptr;

  Description description{};
  comm::Work described;

  std::mutex mutex;  ///< the description may come while somebody waits
  bool posted = false;
  bool nothing = false;
  bool leaves = true;   ///< those that require gradients; else they are gradients themselves
  task::Values values;  ///< on the device, where they come by it
  std::vector<bool> with_gradients;
  task::Values codes;  ///< of those that come shortened
  std::vector<comm::Work> arriving;

  static void post(const std::shared_ptr<State>& state);
  static void try_to_post(const std::shared_ptr<State>& state) noexcept;
  static void post_soon(const std::shared_ptr<State>& state);
  static bool arrive(const std::shared_ptr<State>& state);
  static Incoming waited_for(std::shared_ptr<State> state);
  void require_scheme(comm::Scheme sent) const;
  void wait_for(const comm::Work& work, Deadline deadline) const;
  torch::Tensor room_for(const torch::Tensor& value, comm::Scheme of_sent) const;
  bool comes_by_card(std::size_t i) const;
  torch::Tensor arrived(std::size_t i) const;
};

}  // namespace bimetal::parallel::pipeline
