#include "bimetal/train/even_out.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <utility>

#include "bimetal/base/deadline.h"
#include "bimetal/base/error.h"
#include "bimetal/base/quantity.h"
#include "bimetal/checkpoint/catch_up.h"
#include "bimetal/checkpoint/checkpoint.h"
#include "bimetal/comm/exchange.h"
#include "bimetal/progress/members_change_json.h"
#include "bimetal/train/epoch.h"
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
          {"saved_step", run.saved_step},
          {"evaluated_step", run.evaluated_step},
          {"save_owed", run.save_owed},
          {"evaluation_owed", run.evaluation_owed},
          {"elapsed_s", run.journal->journal.elapsed_seconds()},
          {"changes", run.journal->journal.changes()},
          {"members", members}};
}

void take_history(Run& run, const std::string& text) {
  try {
    const auto history = Json::parse(text);
    run.planned_steps = history.at("planned_steps");
    run.saved_step = history.at("saved_step");
    run.evaluated_step = history.at("evaluated_step");
    run.save_owed = history.at("save_owed");
    run.evaluation_owed = history.at("evaluation_owed");
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
    for (std::size_t known = journal.changes().size(); known < history.at("changes").size();) {
      journal.add_change(history.at("changes").at(known++).get<progress::MembersChange>());
    }
  } catch (const Json::exception& error) {
    throw Error(ErrorCode::CorruptData,
                fmt::format("what another rank says of the run makes no sense: {}", error.what()));
  }
}

/// What the ranks of a new epoch have of the run.
struct Standing {
  std::vector<std::int64_t> steps;  ///< that each has made; -1: it has not begun
  bool shards_lost = false;         ///< says any of them

  std::int64_t most() const { return *std::ranges::max_element(steps); }
  int furthest() const { return static_cast<int>(std::ranges::max_element(steps) - steps.begin()); }
  std::vector<bool> behind() const {
    std::vector<bool> behind;
    for (const auto made : steps) behind.push_back(made < most());
    return behind;
  }
};

Standing standing_of(const Run& run, comm::Group group, bool shards_lost) {
  const bool begun = run.whole() ? run.learnt.begun : run.journal.has_value();
  const std::array<std::int64_t, 2> mine = {begun ? run.learnt.state.step : -1, shards_lost};
  std::vector<std::int64_t> all(2 * static_cast<std::size_t>(group.size()));
  group
      .all_gather(comm::buffer(std::span(mine)), comm::buffer(std::span(all)),
                  Deadline::after(run.timeout()))
      .wait();
  Standing standing;
  for (std::size_t i = 0; i < all.size(); i += 2) {
    standing.steps.push_back(all[i]);
    standing.shards_lost = standing.shards_lost || all[i + 1] != 0;
  }
  if (standing.most() < 0) {
    throw Error(ErrorCode::PeerLost, "every member that had the model is gone");
  }
  return standing;
}

void share_whole_model(Run& run, const comm::Group& group, const std::vector<bool>& behind) {
  auto& learnt = run.learnt;
  const bool follows = behind[static_cast<std::size_t>(group.rank())];
  if (follows) {
    learnt.begun = false;  // until it has all of it
    make_whole(run.job, group.size(), run.task, run.place, learnt);
  }
  auto state = checkpoint::catch_up(group, behind, learnt.state, learnt.model, *learnt.optimizer,
                                    run.timeout());
  if (follows) learnt.state = std::move(state);
  learnt.begun = true;
}

void share_history(Run& run, const comm::Group& group, int root, bool follows) {
  const auto own = follows ? std::string() : history_of(run).dump();
  const auto bytes = std::as_bytes(std::span(own));
  const auto text = comm::broadcast_bytes(group, comm::Bytes(bytes.begin(), bytes.end()), root,
                                          Deadline::after(run.timeout()));
  if (!follows) return;
  take_history(run, {reinterpret_cast<const char*>(text.data()), text.size()});
}

/// To the last checkpoint that rank 0 finds.
void go_back(Run& run, const comm::Group& group) {
  const auto found = comm::from_rank_0(
      group,
      [&] {
        const auto& dir = run.job.checkpoint.dir;
        const auto last = dir.empty() ? checkpoint::LastSave() : checkpoint::last_save(dir);
        if (last.sequence == 0) {
          throw Error(ErrorCode::PeerLost,
                      "what the lost ranks had of the model has been saved nowhere: "
                      "checkpoint.every_steps saves it, zero.copies = 2 keeps it twice");
        }
        return Json{{"step", last.step}, {"path", last.path.string()}}.dump();
      },
      Deadline::after(run.timeout()));
  const auto last = Json::parse(found);
  const std::int64_t step = last.at("step");
  if (run.learnt.state.step > 0) {  // it is not new
    run.observer.on_notice(
        fmt::format("the model goes on from the checkpoint of step {}: {} to make again", step,
                    counted(std::max<std::int64_t>(0, run.learnt.state.step - step), "step")));
  }
  run.learnt.saved = last.at("path").get<std::string>();
  run.learnt.begun = false;
  run.learnt.state.step = step;
  run.saved_step = step;
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
  if (standing.shards_lost) go_back(run, group);
  if (std::ranges::all_of(standing.steps, [&](auto made) { return made == standing.most(); })) {
    return;
  }
  const auto behind = standing.behind();
  if (run.whole()) {
    share_whole_model(run, group, behind);
  } else if (run.job.zero.level == 0) {
    run.learnt.begun = false;  // each goes on from what has been saved, as who is new
  }
  share_history(run, group, standing.furthest(), behind[static_cast<std::size_t>(group.rank())]);
}

}  // namespace bimetal::train
