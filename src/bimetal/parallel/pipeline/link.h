#pragma once
// Carries activations and their gradients between neighbouring pieces of a model.

#include <torch/csrc/api/include/torch/types.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "bimetal/comm/group.h"
#include "bimetal/parallel/mesh/mesh.h"
#include "bimetal/parallel/pipeline/activation_codec.h"
#include "bimetal/parallel/pipeline/stage_model.h"
#include "bimetal/parallel/pipeline/wait_for_peer.h"
#include "bimetal/task/unit.h"

namespace bimetal::parallel::pipeline {

/// Which message of a step: what a piece has computed for a micro-batch.
struct MessageName {
  std::int64_t step = 0;
  bool forward = true;  ///< activations; else gradients
  int piece = 0;        ///< that computed it
  int micro_batch = 0;
};

/// Values that come from another stage. A handle: what has been asked for arrives, whether or not
/// somebody still waits.
class Incoming {
 public:
  struct State;
  Incoming() = default;
  explicit Incoming(std::shared_ptr<State> state) : state_(std::move(state)) {}

  explicit operator bool() const noexcept { return state_ != nullptr; }

  /// Blocks. On the device; leaves that require gradients where they did at the sender. Nothing if
  /// the sender has none to give (see Link::send_nothing). Errors: the fabric's, naming both
  /// stages; CallMismatch where the sender shortens them by another scheme; Timeout once the
  /// deadline of waiting has passed. Where there is no memory for them, that is thrown, and nothing
  /// is lost: they can be waited for once more.
  std::optional<task::Values> wait();

  /// The same for who will not compute with them, but must take them: on the host, of the right
  /// shapes and types, whatever they hold.
  std::optional<task::Values> wait_on_host();

 private:
  std::shared_ptr<State> state_;
};

/// One rank's connections to the other stages of its pipeline. Activations go with a description of
/// their shapes and types, so that micro-batches may differ; the memory for them is there as soon
/// as that has come, and they are received into it while the stage computes. Links that have a
/// scheme shorten the activations that gradients flow through, and these gradients, with error
/// feedback. Use from one thread.
class Link {
 public:
  using Peers = std::vector<int>;  ///< ranks of mesh.pipeline()

  /// `patience`: of each wait. Errors: schemes_of_peers()'s.
  Link(const Mesh& mesh, const torch::Device& device, const Patience& patience,
       const ActivationCompression& compression = {});

  /// Gradients are those of a sum of losses times that, the same on all ranks. They are shortened
  /// in units of it, so that what is lost means the same in later steps, and float16 keeps them.
  void begin_step(double loss_factor);

  /// Asks for a message with a description, from `peer`, a rank of mesh.pipeline(), as below.
  Incoming expect(int peer, const MessageName& name);
  /// Asks for one without: `like` says what it will look like. Undefined ones are left out.
  Incoming expect_like(int peer, const MessageName& name, const task::Values& like);

  /// Sends with a description to ranks of one replica, the same to each, and returns at once.
  /// Error(Unsupported) for values that cannot be described: of more tensors or dimensions than any
  /// model has between its units. This and send_like() send all, or where there is no memory for it
  /// nothing.
  void send(const Peers& peers, const MessageName& name, const task::Values& values);
  /// Instead: there are none, because something went wrong.
  void send_nothing(const Peers& peers, const MessageName& name);
  /// Sends to who has called expect_like().
  void send_like(const Peers& peers, const MessageName& name, const task::Values& values);
  /// The same in a step that will be dropped: zeros like `like`, which are written into it where
  /// that saves memory. What was lost so far stays for the next step.
  void send_zeros_like(const Peers& peers, const MessageName& name, const task::Values& like);

  /// Waits for what has been sent. Errors: the fabric's, naming both stages; Timeout.
  void flush();

  /// Bytes of values sent since the start, as they are on the link.
  std::int64_t bytes_sent() const noexcept { return bytes_sent_; }

 private:
  /// What is to come, before anything is asked for.
  std::shared_ptr<Incoming::State> await(int peer, const MessageName& name) const;
  void send_description(const Peers& peers, const MessageName& name,
                        std::shared_ptr<const Description> description);
  /// As they go over the link, in memory of the host; undefined ones are left out. Shortened once,
  /// whoever gets them: what is lost by that goes with the next ones.
  std::vector<torch::Tensor> prepared(const Peers& peers, const MessageName& name,
                                      const task::Values& values);
  void send_prepared(const Peers& peers, const MessageName& name,
                     const std::vector<torch::Tensor>& hosts);
  torch::Tensor shortened(comm::Scheme scheme, const MessageName& name, std::size_t value,
                          const torch::Tensor& host);
  comm::Scheme scheme_of(int peer) const { return schemes_[static_cast<std::size_t>(peer)]; }

  const Mesh& mesh_;
  comm::Group group_;
  torch::Device device_;
  Patience patience_;
  std::vector<comm::Scheme> schemes_;  ///< by peer
  std::int64_t step_ = 0;              ///< of what was sent last
  double gradient_unit_ = 1;           ///< a power of 2
  LostGradients lost_;
  struct Sent {
    int peer;
    comm::Work work;
  };
  std::vector<Sent> sent_;
  std::int64_t bytes_sent_ = 0;
};

}  // namespace bimetal::parallel::pipeline
