#include "bimetal/train/epochs.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bimetal/base/deadline.h"
#include "bimetal/base/error.h"
#include "bimetal/base/quantity.h"
#include "bimetal/membership/membership.h"
#include "bimetal/progress/together.h"
#include "bimetal/train/epoch.h"
#include "bimetal/train/even_out.h"

namespace bimetal::train {
namespace {

std::vector<std::string> names_of(const std::vector<membership::Member>& members) {
  std::vector<std::string> names;
  for (const auto& member : members) names.push_back(member.name);
  return names;
}

/// The epochs of one rank.
class Epochs {
 public:
  Epochs(Run& run, comm::Group& group)
      : run_(run), members_(*run.options.members), group_(group), made_in_(members_.roll().epoch) {}

  progress::Report train() {
    if (!run_.options.doors.empty()) come_in();
    std::optional<Error> loss;
    while (true) {
      try {
        if (due_) begin_next(std::exchange(loss, std::nullopt));
        if (!epoch_) epoch_ = std::make_unique<Epoch>(run_, group_);
        auto report = epoch_->train();
        if (!epoch_->change()) return report;
        if (left()) return {.world_size = group_.size(), .left = true, .interrupted = true};
      } catch (const Error& error) {
        if (!follows_from_a_loss(error) || members_.over()) throw;
        loss = error;
        // Whoever waits for this one, and has seen nothing yet.
        group_.abort(fmt::format("rank {}: {}", group_.rank(), error.what()));
      }
      due_ = true;
    }
  }

 private:
  /// A rank that comes later: what it can do without the others is done before they wait for it.
  void come_in() {
    if (run_.whole()) prepare(run_, group_);
    run_.observer.on_phase("waiting to be let in");
    group_ = members_.join(run_.options.doors, [this] { require_patience(); });
    made_in_ = members_.roll().epoch;
    try {
      even_out(run_, group_);
    } catch (const Error& error) {
      if (!follows_from_a_loss(error)) throw;
      due_ = true;
    }
  }

  void require_patience() const {
    const auto& options = run_.options;
    if (options.interrupt_requested && options.interrupt_requested()) throw progress::Interrupted();
  }

  /// Whether this rank was one of those who leave.
  bool left() const {
    if (!epoch_ || !epoch_->change()) return false;
    return std::ranges::find(*epoch_->change(), group_.rank()) != epoch_->change()->end();
  }

  void begin_next(const std::optional<Error>& loss) {
    const Stopwatch watch;
    const auto leaving = epoch_ && epoch_->change() ? *epoch_->change() : std::vector<int>();
    const auto before = members_.roll();
    const auto change = members_.next(loss, leaving);
    group_ = change.group;
    run_.observer.on_leading(group_.rank() == 0);  // it is the one that tells
    const bool saved = run_.whole() || change.lost.empty() || rescue(before, change);
    epoch_.reset();
    if (loss && !run_.options.goes_on) {
      members_.end();
      throw *loss;
    }
    tell(change, loss);
    even_out(run_, group_, !saved);
    due_ = false;
    made_in_ = members_.roll().epoch;
    run_.observer.on_notice(fmt::format("{} on from step {}, after {:.2f} s",
                                        counted(group_.size(), "worker goes", "workers go"),
                                        run_.learnt.state.step, watch.seconds()));
  }

  /// What is in shards, of which one is lost: it is where its copy is.
  bool rescue(const membership::Roll& before, const membership::Change& change) {
    if (!epoch_ || before.epoch != made_in_ || run_.job.zero.copies == 1) return false;
    std::vector<int> lost;
    for (std::size_t rank = 0; rank < before.members.size(); ++rank) {
      const auto id = before.members[rank].id;
      if (std::ranges::find(change.lost, id, &membership::Member::id) != change.lost.end()) {
        lost.push_back(static_cast<int>(rank));
      }
    }
    if (lost.size() == 1 && change.came.empty()) return epoch_->rescue(lost[0], group_);
    run_.observer.on_rescue(
        {.state = progress::Rescue::State::Failed,
         .cause = lost.size() == 1
                      ? std::string("another worker came as it was lost")
                      : fmt::format("ranks {} are lost, and each shard has but one copy",
                                    fmt::join(lost, " and "))});
    return false;
  }

  void tell(const membership::Change& change, const std::optional<Error>& loss) {
    auto& observer = run_.observer;
    if (!change.lost.empty()) {
      observer.on_notice(fmt::format("lost: {}{}", fmt::join(names_of(change.lost), ", "),
                                     loss ? fmt::format(" ({})", loss->what()) : ""));
    }
    if (!change.left.empty()) {
      observer.on_notice(fmt::format("left: {}", fmt::join(names_of(change.left), ", ")));
    }
    if (!change.came.empty()) {
      observer.on_notice(fmt::format("joined: {}", fmt::join(names_of(change.came), ", ")));
    }
    if (loss && run_.job.compression.gradients != "none") {
      observer.on_notice("the error feedback of compressed gradients is dropped");
    }
  }

  Run& run_;
  membership::Membership& members_;
  comm::Group& group_;
  std::unique_ptr<Epoch> epoch_;
  std::uint32_t made_in_ = 0;  ///< the members' epoch that epoch_ is of
  bool due_ = false;           ///< the members' next epoch is
};

}  // namespace

progress::Report train_epochs(Run& run, comm::Group& group) {
  if (run.options.members == nullptr) return Epoch(run, group).train();
  return Epochs(run, group).train();
}

}  // namespace bimetal::train
