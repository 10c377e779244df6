#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bimetal/base/deadline.h"
#include "bimetal/base/error.h"
#include "bimetal/base/typed_text.h"
#include "bimetal/base/wire_fields.h"
#include "bimetal/checkpoint/checkpoint.h"
#include "bimetal/checkpoint/checkpoint_folder.h"
#include "bimetal/checkpoint/starting_point.h"
#include "bimetal/comm/exchange.h"
#include "bimetal/progress/members_change_json.h"
#include "bimetal/train/epoch.h"
#include "bimetal/train/epochs.h"
#include "bimetal/train/trained_model.h"

namespace bimetal::train {
namespace {

using Json = nlohmann::ordered_json;

Json history_of(const Run& run) {
  Json members = Json::array();
  for (const auto& [place, totals] : run.journal->members) {
    members.push_back({place.host, place.device, place.stage, totals.samples, totals.compute_s,
                       totals.communicate_s, totals.wait_s, totals.bytes_sent});
  }
  return {{"planned_steps", run.planned_steps},
          {"elapsed_s", run.journal->journal.elapsed_seconds()},
          {"changes", run.journal->journal.changes()},
          {"members", members}};
}

void take_history(Run& run, const std::string& text) {
  try {
    const auto history = Json::parse(text);
    run.planned_steps = history.at("planned_steps");
    if (!run.journal) run.start_journal();
    run.journal->members.clear();
    for (const auto& one : history.at("members")) {
      run.journal->members.push_back({.place = {one.at(0), one.at(1), one.at(2)},
                                      .totals = {.samples = one.at(3),
                                                 .compute_s = one.at(4),
                                                 .communicate_s = one.at(5),
                                                 .wait_s = one.at(6),
                                                 .bytes_sent = one.at(7)}});
    }
    std::vector<progress::WorkerTotals> totals;
    for (const auto& member : run.journal->members) totals.push_back(member.totals);
    auto& journal = run.journal->journal;
    journal.go_on(history.at("elapsed_s"), totals);
    // The number belongs to a rank that these members do not know.
    if (run.number >= std::ssize(run.journal->members)) run.number = -1;
    for (std::size_t known = journal.changes().size(); known < history.at("changes").size();) {
      journal.add_change(history.at("changes").at(known++).get<progress::MembersChange>());
    }
  } catch (const Json::exception& error) {
    throw Error(ErrorCode::CorruptData,
                fmt::format("what another rank says of the run makes no sense: {}", error.what()));
  }
}

/// A rank's position in the run.
struct Account {
  std::int64_t step = -1;   ///< that it has made last; -1: it has not begun
  bool from_start = false;  ///< it needs nobody to begin
  bool shards_lost = false;
  /// The changes and members that it has heard of. Not one sum: a newcomer counts itself before
  /// others tell of it.
  std::int64_t changes = -1, members = -1;
  std::int64_t saved_step = -1, evaluated_step = -1;
  bool save_owed = false, evaluation_owed = false;
};

template <typename Wire>
void fields(Wire& wire, Account& one) {
  wire(one.step, one.from_start, one.shards_lost, one.changes, one.members, one.saved_step,
       one.evaluated_step, one.save_owed, one.evaluation_owed);
}

/// The writer may be gone before it had finished: rank 0 looks.
std::int64_t saved_step_of(const Run& run, int rank) {
  const auto& dir = run.job.checkpoint.dir;
  if (rank != 0 || dir.empty() || run.saved_step == 0) return run.saved_step;
  const auto path = checkpoint::checkpoint_path(dir, run.saved_step);
  return std::filesystem::is_directory(path) ? run.saved_step : -1;
}

Account account_of(const Run& run, int rank, bool shards_lost) {
  const bool begun = run.journal && (run.learnt.begun || !run.whole());
  const bool from_start = run.options.doors.empty();
  if (!begun) return {.from_start = from_start, .shards_lost = shards_lost};
  return {.step = run.learnt.state.step,
          .from_start = from_start,
          .shards_lost = shards_lost,
          .changes = std::ssize(run.journal->journal.changes()),
          .members = std::ssize(run.journal->members),
          .saved_step = saved_step_of(run, rank),
          .evaluated_step = run.evaluated_step,
          .save_owed = run.save_owed,
          .evaluation_owed = run.evaluation_owed};
}

/// The ranks' positions in the run at the start of a new epoch.
struct Standing {
  std::vector<Account> accounts;

  int furthest() const {
    return static_cast<int>(std::ranges::max_element(accounts, {}, &Account::step) -
                            accounts.begin());
  }
  int best_informed() const {
    const auto best = std::ranges::max_element(accounts, {}, [](const auto& one) {
      return std::tuple(one.changes, one.members, one.step);
    });
    return static_cast<int>(best - accounts.begin());
  }
  bool nobody_has_begun() const { return most() < 0; }
  std::int64_t most() const { return of(furthest()).step; }
  const Account& of(int rank) const { return accounts[static_cast<std::size_t>(rank)]; }
  bool behind(int rank) const { return of(rank).step < most(); }
  std::vector<bool> all_behind() const {
    std::vector<bool> all;
    for (int rank = 0; rank < std::ssize(accounts); ++rank) all.push_back(behind(rank));
    return all;
  }
  /// Whoever knows most of it may be a step behind one that was away when others went back.
  bool lacks_history(int rank) const {
    if (rank == best_informed()) return false;
    const auto &one = of(rank), &best = of(best_informed());
    return behind(rank) || one.changes != best.changes || one.members != best.members;
  }
  template <typename Which>
  bool any(Which which) const {
    for (int rank = 0; rank < std::ssize(accounts); ++rank) {
      if (which(rank)) return true;
    }
    return false;
  }
};

Standing standing_of(const Run& run, comm::Group group, bool shards_lost) {
  const auto mine = write_fields(account_of(run, group.rank(), shards_lost));
  Standing standing;
  for (const auto& bytes : comm::all_gather_bytes(group, mine, Deadline::after(run.timeout()))) {
    standing.accounts.push_back(read_fields<Account>(bytes));
  }
  if (standing.nobody_has_begun() && !standing.of(0).from_start) {
    throw NothingToGoOnWith("every member that had the model is gone");
  }
  return standing;
}

/// A save or an evaluation takes all ranks, of which one may have been through with it when another
/// one was lost, and others not: all do it again, or none.
void agree_on_debts(Run& run, const Standing& standing) {
  const auto& ahead = standing.of(standing.furthest());
  run.saved_step = standing.accounts[0].saved_step;
  run.evaluated_step = ahead.evaluated_step;
  run.save_owed = run.evaluation_owed = false;
  for (const auto& one : standing.accounts) {
    if (one.step < ahead.step) continue;
    run.saved_step = std::min(run.saved_step, one.saved_step);
    run.evaluated_step = std::min(run.evaluated_step, one.evaluated_step);
    run.save_owed |= one.save_owed;
    run.evaluation_owed |= one.evaluation_owed;
  }
}

void share_whole_model(Run& run, const comm::Group& group, const std::vector<bool>& behind) {
  auto& learnt = run.learnt;
  const bool follows = behind[static_cast<std::size_t>(group.rank())];
  if (follows) learnt.begun = false;  // until it has all of it
  comm::do_watched(group, run.timeout(), "a rank was given the model", [&] {
    if (follows) make_whole(run.job, group.size(), run.task, run.place, learnt);
    auto state = checkpoint::catch_up(group, behind, learnt.state, learnt.model, *learnt.optimizer,
                                      run.timeout());
    if (follows) learnt.state = std::move(state);
  });
  learnt.begun = true;
}

void share_history(Run& run, const comm::Group& group, int root, bool follows) {
  const auto own = follows ? std::string() : history_of(run).dump();
  const auto text = comm::broadcast_text(group, own, root, Deadline::after(run.timeout()));
  if (follows) take_history(run, text);
}

/// To the last checkpoint that rank 0 finds.
void go_back(Run& run, const comm::Group& group, const Standing& standing) {
  const auto found = comm::from_rank_0(
      group,
      [&] {
        const auto& dir = run.job.checkpoint.dir;
        const auto last = dir.empty() ? checkpoint::LastSave() : checkpoint::last_save(dir);
        if (last.sequence == 0) return std::string();
        return Json{{"step", last.step}, {"path", last.path.string()}}.dump();
      },
      Deadline::after(run.timeout()));
  if (found.empty()) {
    throw NothingToGoOnWith(
        "what the lost ranks had of the model has been saved nowhere: checkpoint.every_steps saves "
        "it, zero.copies = 2 keeps it twice");
  }
  const auto last = Json::parse(found);
  const std::int64_t step = last.at("step");
  if (run.learnt.state.step > 0) {  // it is not new
    run.observer.on_notice(
        fmt::format("the model goes on from the checkpoint of step {}: {} to make again", step,
                    counted(std::max<std::int64_t>(0, run.learnt.state.step - step), "step")));
  }
  run.learnt.saved = last.at("path").get<std::string>();
  run.learnt.begun = false;
  run.evaluation_owed = run.evaluation_owed && step == standing.most();
  run.learnt.state.step = step;
  run.saved_step = step;
  run.save_owed = false;
}

}  // namespace

void prepare(Run& run, const comm::Group& alone) {
  progress::Observer nobody;
  Run rehearsal(run.asked, run.job, run.options, nobody, run.place, run.task);
  // One model for all: others have its values.
  make_whole(run.job, alone.size(), run.task, run.place, rehearsal.learnt);
  rehearsal.elements = 0;
  for (const auto& parameter : rehearsal.learnt.model.parameters()) {
    *rehearsal.elements += static_cast<double>(parameter.numel());
  }
  { const Epoch measured(rehearsal, alone); }
  run.precision = rehearsal.precision;
  run.cost = rehearsal.cost;
  run.elements = rehearsal.elements;
  run.learnt.model = std::move(rehearsal.learnt.model);
  run.learnt.optimizer = std::move(rehearsal.learnt.optimizer);
}

void even_out(Run& run, comm::Group group, bool shards_lost) {
  const auto standing = standing_of(run, group, shards_lost);
  if (standing.nobody_has_begun()) {
    run.learnt.begun = false;  // nor gone further on some ranks than on others
    return;
  }
  const int rank = group.rank();
  const bool follows = standing.behind(rank);
  agree_on_debts(run, standing);
  if (standing.any([&](int one) { return standing.of(one).shards_lost; })) {
    go_back(run, group, standing);
  }
  if (standing.any([&](int one) { return standing.behind(one); })) {
    if (run.whole()) {
      share_whole_model(run, group, standing.all_behind());
    } else if (follows || run.job.zero.level == 0) {
      run.learnt.begun = false;  // it goes on from the saved state, like a newcomer
    }
  }
  if (standing.any([&](int one) { return standing.lacks_history(one); })) {
    share_history(run, group, standing.best_informed(), standing.lacks_history(rank));
  }
}

}  // namespace bimetal::train
