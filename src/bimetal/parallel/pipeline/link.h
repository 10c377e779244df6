#pragma once
// Carries activations and their gradients between neighbouring pieces of a model.

#include <torch/csrc/api/include/torch/types.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "bimetal/c10d/card_to_card.h"
#include "bimetal/comm/group.h"
#include "bimetal/parallel/mesh/mesh.h"
#include "bimetal/parallel/pipeline/activation_codec.h"
#include "bimetal/parallel/pipeline/incoming.h"
#include "bimetal/parallel/pipeline/stage_model.h"
#include "bimetal/parallel/pipeline/wait_for_peer.h"
#include "bimetal/task/unit.h"

namespace bimetal::parallel::pipeline {

/// One rank's connections to the other stages of its pipeline. Activations go with a description of
/// their shapes and types, so that micro-batches may differ. The memory for them is there as soon
/// as that has come, and they are received into it while the stage computes. Links that have a
/// scheme shorten the activations that gradients flow through, and these gradients, with error
/// feedback. Where a vendor library joins the devices of two ranks, values that are not shortened
/// go from device to device, and a rank that sends does not wait for its device. Use from one
/// thread.
class Link {
 public:
  using Peers = std::vector<int>;  ///< ranks of mesh.pipeline()

  /// `patience`: of each wait. `vendor`: what this rank has; all have some, or none has. `chunks`:
  /// pieces per stage. Collective over mesh.pipeline(). Errors: schemes_of_peers()'s;
  /// c10d::connect_cards()'s.
  Link(const Mesh& mesh, const torch::Device& device, const Patience& patience,
       const ActivationCompression& compression = {}, const c10d::VendorLibrary& vendor = {},
       int chunks = 1);

  /// Gradients are those of a sum of losses times that, the same on all ranks. They are shortened
  /// in units of it, so that the error feedback means the same in later steps, and float16 keeps
  /// them.
  void begin_step(double loss_factor);

  /// Asks for a message with a description, from `peer`, a rank of mesh.pipeline(), as below.
  Incoming expect(int peer, const MessageName& name);
  /// Asks for one without: `like` has its form. Undefined ones are left out.
  Incoming expect_like(int peer, const MessageName& name, const task::Values& like);

  /// Sends with a description to ranks of one replica, the same to each, and returns at once.
  /// Error(Unsupported) for values that cannot be described: of more tensors or dimensions than any
  /// model has between its units. This and send_like() send all, or where there is no memory for it
  /// nothing.
  void send(const Peers& peers, const MessageName& name, const task::Values& values);
  /// Instead: there are none, because something went wrong.
  void send_nothing(const Peers& peers, const MessageName& name);
  /// Sends to a stage that has called expect_like().
  void send_like(const Peers& peers, const MessageName& name, const task::Values& values);
  /// The same in a step that will be dropped: zeros like `like`, which are written into it where
  /// that saves memory. The error feedback stays for the next step.
  void send_zeros_like(const Peers& peers, const MessageName& name, const task::Values& like);

  /// Waits for messages that were sent. Errors: the fabric's, naming both stages; Timeout.
  void flush();

  /// Bytes of values sent since the start, as they are on the link.
  std::int64_t bytes_sent() const noexcept { return bytes_sent_; }

 private:
  /// A message that is to come, before anything is asked for.
  std::shared_ptr<Incoming::State> await(int peer, const MessageName& name) const;
  void send_description(const Peers& peers, const MessageName& name,
                        std::shared_ptr<const Description> description);
  /// A value as it goes over the link: in memory of the host, and on the device for who is reached
  /// there. Undefined where nobody gets it so.
  struct Prepared {
    torch::Tensor host, card;
  };
  /// Shortened once, whoever gets them: what is lost by that goes with the next ones.
  std::vector<Prepared> prepared(const Peers& peers, const MessageName& name,
                                 const task::Values& values);
  void send_prepared(const Peers& peers, const MessageName& name,
                     const std::vector<Prepared>& values);
  /// Which of these ways a value that goes by `scheme` takes to somebody.
  struct Ways {
    bool by_host = false, by_card = false;
  };
  Ways ways_of(const Peers& peers, const torch::Tensor& value, comm::Scheme scheme) const;
  torch::Tensor shortened(comm::Scheme scheme, const MessageName& name, std::size_t value,
                          const torch::Tensor& host);
  comm::Scheme scheme_of(int peer) const { return schemes_[static_cast<std::size_t>(peer)]; }

  const Mesh& mesh_;
  comm::Group group_;
  torch::Device device_;
  Patience patience_;
  std::vector<comm::Scheme> schemes_;        ///< by peer
  std::shared_ptr<c10d::CardToCard> cards_;  ///< none: all go through the host
  std::int64_t step_ = 0;                    ///< of the last message sent
  double gradient_unit_ = 1;                 ///< a power of 2
  LostGradients lost_;
  struct Sent {
    int peer;
    comm::Work work;
  };
  std::vector<Sent> sent_;
  std::int64_t bytes_sent_ = 0;
};

}  // namespace bimetal::parallel::pipeline
