#include "bimetal/train/epochs.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "bimetal/base/deadline.h"
#include "bimetal/base/error.h"
#include "bimetal/membership/membership.h"
#include "bimetal/progress/together.h"
#include "bimetal/train/epoch.h"
#include "bimetal/train/pipeline/auto_mesh.h"

namespace bimetal::train {
namespace {

/// The seconds in which members that are there meet.
constexpr double kToMeetS = 5;

std::vector<std::string> names_of(const std::vector<membership::Member>& members) {
  std::vector<std::string> names;
  for (const auto& member : members) names.push_back(member.name);
  return names;
}

/// The epochs of one rank.
class Epochs {
 public:
  Epochs(Run& run, comm::Group& group)
      : run_(run),
        members_(*run.options.members),
        group_(group),
        made_in_(members_.roll().epoch),
        planned_(run.options.doors.empty()) {}

  progress::Report train() {
    bool outside = !run_.options.doors.empty();
    std::optional<Error> loss;
    while (true) {
      try {
        if (std::exchange(outside, false)) come_in();
        if (due_) begin_next(std::exchange(loss, std::nullopt));
        if (!epoch_ && !make_epoch()) continue;
        if (since_) tell();
        auto report = epoch_->train();
        if (!epoch_->change()) {
          members_.finish();
          return report;
        }
        if (left()) return {.world_size = group_.size(), .left = true, .interrupted = true};
      } catch (const NothingToGoOnWith& why) {
        members_.end();                       // all have seen the same
        run_.observer.on_notice(why.what());  // a launcher tells of the loss alone
        throw;
      } catch (const progress::Interrupted&) {
        throw;  // all end, or this rank is in no epoch: nobody is lost
      } catch (const Error& error) {
        if (!follows_from_a_loss(error) || members_.over()) throw;
        loss = error;
        // For ranks that wait for this one, and have seen nothing yet.
        const auto why = fmt::format("rank {}: {}", group_.rank(), error.what());
        group_.abort(why);
        if (epoch_) epoch_->abort(why);
      }
      due_ = true;
    }
  }

 private:
  /// For a rank that comes later: it does all work that it can do alone before the others wait for
  /// it.
  void come_in() {
    if (run_.whole()) prepare(run_, group_);
    run_.observer.on_phase("waiting to be let in");
    members_.wait_with([this] {
      if (interrupted()) throw progress::Interrupted();
    });
    group_ = members_.join(run_.options.doors);
    made_in_ = members_.roll().epoch;
    can_all_rescue(false);
    even_out(run_, group_);
  }

  bool interrupted() const {
    const auto& asked = run_.options.interrupt_requested;
    return asked && asked();
  }

  bool leaves() const {
    const auto& asked = run_.options.leave_requested;
    return asked && asked();
  }

  /// Those who meet within seconds of Ctrl-C still end the job with a checkpoint.
  void wait_with_patience() {
    members_.wait_with([this, waited = Stopwatch(), told = false]() mutable {
      if (waited.seconds() < kToMeetS) return;
      if (interrupted()) throw progress::Interrupted();
      if (std::exchange(told, true)) return;
      run_.observer.on_notice(
          fmt::format("waiting for the other workers, {:g} s at most (elastic.patience_s)",
                      run_.asked.elastic.patience_s));
    });
  }

  /// False where those who are there cannot go on by themselves, and somebody else has come.
  bool make_epoch() {
    if (planned_ || run_.whole()) {
      epoch_ = std::make_unique<Epoch>(run_, group_);
      return true;
    }
    try {
      auto options =
          run_.options;  // a rank that is to leave does so after a step, and stops nobody
      options.interrupt_requested = [this] { return interrupted() && !leaves(); };
      run_.job = with_mesh_again(run_.asked, group_, options, run_.observer);
      epoch_ = std::make_unique<Epoch>(run_, group_);
      return true;
    } catch (const Error& error) {
      const auto code = error.code();
      if (code != ErrorCode::OutOfMemory && code != ErrorCode::InvalidArgument) throw;
      wait_for_another(error);
      due_ = true;
      return false;
    }
  }

  /// All ranks have seen `lack`. Throws it where nobody comes in time.
  void wait_for_another(const Error& lack) {
    const auto patience = run_.job.elastic.patience_s;
    run_.observer.on_notice(
        fmt::format("waiting {:g} s for another worker: {}", patience, lack.what()));
    const auto end = Deadline::after(milliseconds_of(patience));
    while (true) {
      std::array<int, 3> any = {members_.somebody_waits(), interrupted(), end.expired()};
      group_
          .all_reduce(comm::buffer(std::span(any)), comm::ReduceOp::max,
                      Deadline::after(run_.timeout()))
          .wait();
      const auto [came, stops, late] = any;
      if (came != 0) return;
      if (stops != 0) throw progress::Interrupted();
      if (late != 0) throw lack;
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
  }

  /// Whether this rank was one of those who leave.
  bool left() const {
    if (!epoch_ || !epoch_->change()) return false;
    return std::ranges::find(*epoch_->change(), group_.rank()) != epoch_->change()->end();
  }

  void begin_next(const std::optional<Error>& loss) {
    if (!since_) since_.emplace();
    const auto leaving = epoch_ && epoch_->change() ? *epoch_->change() : std::vector<int>();
    const auto before = members_.roll();
    run_.observer.on_phase("meeting the others");
    wait_with_patience();
    const auto change = members_.next(loss, leaving);
    group_ = change.group;
    run_.observer.on_leading(group_.rank() == 0);  // it is the one that tells
    note(change, loss);
    const bool rescued = rescue(before, change, loss.has_value());
    const bool saved = run_.whole() || !loss || rescued;
    epoch_.reset();
    if (loss && !run_.options.goes_on) {
      members_.end();
      throw *loss;
    }
    even_out(run_, group_, !saved);
    due_ = planned_ = false;
    made_in_ = members_.roll().epoch;
    if (run_.journal) tell();  // else once there is one
  }

  /// Whoever is lost before those who are left have evened out is told of with who was lost then.
  void note(const membership::Change& change, const std::optional<Error>& loss) {
    const auto add = [](std::vector<std::string>& to, const std::vector<std::string>& names) {
      to.insert(to.end(), names.begin(), names.end());
    };
    add(untold_.lost, names_of(change.lost));
    add(untold_.left, names_of(change.left));
    add(untold_.came, names_of(change.came));
    if (untold_.cause.empty() && loss) untold_.cause = loss->what();
  }

  /// Whoever has not seen the loss, or has no epoch that it is of, cannot, and then none does.
  bool can_all_rescue(bool can) {
    if (run_.job.zero.copies == 1) return false;
    std::array<int, 1> all = {can};
    group_
        .all_reduce(comm::buffer(std::span(all)), comm::ReduceOp::min,
                    Deadline::after(run_.timeout()))
        .wait();
    return all[0] != 0;
  }

  /// For state in shards: a lost shard is restored from its copy.
  bool rescue(const membership::Roll& before, const membership::Change& change, bool seen) {
    // A rank that has slept, while the others went on without it, is alone with its old state.
    const bool is_next = members_.roll().epoch == before.epoch + 1;
    if (!can_all_rescue(seen && epoch_ && before.epoch == made_in_ && is_next)) return false;
    std::vector<int> lost;
    for (std::size_t rank = 0; rank < before.members.size(); ++rank) {
      const auto id = before.members[rank].id;
      if (std::ranges::find(change.lost, id, &membership::Member::id) != change.lost.end()) {
        lost.push_back(static_cast<int>(rank));
      }
    }
    if (lost.empty()) return false;  // one was silent for too long, and is back
    if (lost.size() == 1 && change.came.empty()) return epoch_->rescue(lost[0], group_);
    run_.observer.on_rescue(
        {.state = progress::Rescue::State::Failed,
         .cause = lost.size() == 1
                      ? std::string("another worker came as it was lost")
                      : fmt::format("ranks {} are lost, and each shard has but one copy",
                                    fmt::join(lost, " and "))});
    return false;
  }

  void tell() {
    auto change = std::exchange(untold_, {});
    change.step = run_.learnt.state.step;
    change.workers = group_.size();
    change.seconds = since_->seconds();
    since_.reset();
    run_.observer.on_members(change);
    run_.journal->journal.add_change(change);
    if (!change.cause.empty() && run_.job.compression.gradients != "none") {
      run_.observer.on_notice("the error feedback of compressed gradients is dropped");
    }
  }

  Run& run_;
  membership::Membership& members_;
  comm::Group& group_;
  std::unique_ptr<Epoch> epoch_;
  progress::MembersChange untold_;  ///< that no epoch has begun with yet
  std::optional<Stopwatch> since_;  ///< the last epoch's end
  std::uint32_t made_in_ = 0;       ///< the members' epoch that epoch_ is of
  bool due_ = false;                ///< the members' next epoch is
  bool planned_;                    ///< run_.job is for the ranks of group_
};

}  // namespace

progress::Report train_epochs(Run& run, comm::Group& group) {
  if (run.options.members == nullptr) return Epoch(run, group).train();
  return Epochs(run, group).train();
}

}  // namespace bimetal::train
