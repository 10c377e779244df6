#include "bimetal/membership/membership.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <random>
#include <thread>
#include <utility>

#include "bimetal/base/deadline.h"
#include "bimetal/base/log.h"
#include "bimetal/base/release.h"
#include "bimetal/comm/exchange.h"
#include "bimetal/membership/meeting.h"
#include "bimetal/rendezvous/bootstrap.h"
#include "bimetal/rendezvous/member_record.h"

namespace bimetal::membership {
namespace {

constexpr std::chrono::milliseconds kLookAtDoorEvery{20}, kBetweenTries{50};
/// For those who have been told their ranks to connect.
constexpr std::chrono::seconds kToConnect{10};
/// For the others to hear that the job has failed.
constexpr std::chrono::seconds kToTell{3};
/// For those who wait to read their answer before the door is gone.
constexpr std::chrono::milliseconds kToRead{200};

std::uint64_t random_id() {
  std::random_device device;
  return (std::uint64_t{device()} << 32) ^ device();
}

/// For a process that comes too late.
Error job_is_done() {
  return {ErrorCode::PeerLost, "the job is done: nobody needs another worker"};
}

/// The first group's word on which side a split would leave the job to.
std::string keeper_of(const std::string& asked, const std::vector<Member>& members) {
  if (asked == kEither) return {};
  const bool one_machine =
      std::ranges::all_of(members, [](const auto& one) { return net::is_loopback(one.door.host); });
  if (asked.empty()) return one_machine ? "" : members.front().host;
  if (std::ranges::find(members, asked, &Member::host) != members.end()) return asked;
  std::vector<std::string> hosts;
  for (const auto& member : members) hosts.push_back(member.host);
  throw Error(ErrorCode::InvalidArgument,
              fmt::format("elastic.keeper = \"{}\" is none of the job's machines ({}), nor "
                          "\"either\"",
                          asked, fmt::join(hosts, ", ")));
}

}  // namespace

bool follows_from_a_loss(const Error& error) {
  return error.code() == ErrorCode::PeerLost || error.code() == ErrorCode::Aborted ||
         error.code() == ErrorCode::Timeout;
}

Membership::Membership(Options options)
    : options_(std::move(options)),
      door_({options_.listen, options_.port}, options_.token, options_.silence) {
  self_ = {random_id(), options_.host,
           fmt::format("{} on {} (process {})", options_.worker, options_.host,
                       rendezvous::own_process_id()),
           door_.address()};
  const char* board = std::getenv("BIMETAL_BOARD");
  if (options_.board || board == nullptr || *board == '\0') return;
  options_.board = net::parse_endpoint(board);
  own_board_ = true;
}

void Membership::found(comm::Group first) {
  Knock own;
  own.who = self_;
  const auto records =
      comm::all_gather_text(first, encode_knock(own), Deadline::after(options_.timeout));
  roll_.epoch = options_.group.epoch;
  for (const auto& record : records) roll_.members.push_back(decode_knock(record).who);
  roll_.keeper = keeper_of(options_.keeper, roll_.members);
  show_roll(roll_);
}

comm::Group Membership::join(std::vector<net::Endpoint> doors) {
  over_ = true;  // unless it succeeds
  const auto until = Deadline::after(options_.patience);
  while (true) {
    for (const auto& door : doors) {
      const auto roll = roll_behind(door);
      if (!roll) continue;
      roll_ = *roll;
      Round round{.until = until, .wait = options_.wait};
      auto group = meet(round);
      over_ = false;
      return group;
    }
    if (until.expired()) {
      throw Error(ErrorCode::PeerLost, "no member of the job is there any more");
    }
    options_.wait();
    std::this_thread::sleep_for(kBetweenTries);
  }
}

/// The others may have gone on, or to the end, while this process was stopped.
void Membership::look_at_board() {
  if (!options_.board) return;
  const auto theirs = roll_behind(*options_.board);
  if (theirs && theirs->epoch > roll_.epoch) roll_ = *theirs;
}

/// Nothing if nobody is there.
std::optional<Roll> Membership::roll_behind(const net::Endpoint& door) const {
  try {
    const auto soon = Deadline::after(options_.silence);
    return roll_at(*rendezvous::connect_store_at_once(door, options_.token, soon), soon);
  } catch (const Error& error) {
    if (error.code() == ErrorCode::PeerLost || error.code() == ErrorCode::Timeout) return {};
    throw;
  }
}

bool Membership::somebody_waits() {
  if (!next_look_.expired()) return waits_;
  next_look_ = Deadline::after(kLookAtDoorEvery);
  waits_ = false;
  door_.look();
  if (roll_.members.front().id != self_.id) {
    door_.send_elsewhere();
    return false;
  }
  const auto newcomers =
      newcomers_at(door_, roll_, [this](const Knock& who) { return objection_to(who); });
  const bool room = options_.most == 0 || static_cast<int>(roll_.members.size()) < options_.most;
  waits_ = room && !newcomers.empty();
  return waits_;
}

Change Membership::next(const std::optional<Error>& loss, std::span<const int> leaving) {
  const auto before = roll_;
  Round round{.until = Deadline::after(options_.patience + options_.timeout),
              .wait = options_.wait};
  const bool names_lost =
      loss && (loss->code() == ErrorCode::PeerLost || loss->code() == ErrorCode::Timeout);
  if (names_lost && loss->rank() && *loss->rank() < static_cast<int>(before.members.size())) {
    const auto& lost = before.members[static_cast<std::size_t>(*loss->rank())];
    if (lost.id != self_.id) round.lost.insert(lost.id);
  }
  std::vector<Member> left;
  for (const int rank : leaving) left.push_back(before.members[static_cast<std::size_t>(rank)]);
  std::erase_if(roll_.members, [&](const auto& one) {
    return std::ranges::find(left, one.id, &Member::id) != left.end();
  });
  over_ = true;  // unless it succeeds
  if (loss) look_at_board();
  auto group = meet(round);
  over_ = false;
  return change_from(before, std::move(group), left);
}

void Membership::fail(const Error& failure) noexcept {
  if (over_ || roll_.members.size() < 2) return;
  try {
    failure_ = failure;
    Round round{.until = Deadline::after(kToTell), .wait = [] {}};
    meet(round);
  } catch (...) {
    // A member that has not been told finds this member gone.
  }
}

void Membership::finish() noexcept {
  over_ = true;
  try {
    // A member that is in this epoch, and missed its end, ends it alone.
    Roll ended;
    ended.epoch = roll_.epoch;
    show_roll(std::move(ended));
    door_.look();
    const auto visitors = door_.visitors();
    if (visitors.empty()) return;
    for (const auto& [number, visitor] : visitors) {
      door_.answer(number, {.verdict = Verdict::failed, .error = job_is_done()});
    }
    std::this_thread::sleep_for(kToRead);
  } catch (...) {
    // A member that has not been told finds this member gone.
  }
}

Change Membership::change_from(const Roll& before, comm::Group group,
                               std::span<const Member> left) const {
  Change change{.group = std::move(group), .left = {left.begin(), left.end()}};
  for (const auto& member : before.members) {
    const bool has_left = std::ranges::find(left, member.id, &Member::id) != left.end();
    if (!has_left && roll_.find(member.id) == nullptr) change.lost.push_back(member);
  }
  for (const auto& member : roll_.members) {
    if (before.find(member.id) == nullptr) change.came.push_back(member);
  }
  return change;
}

Knock Membership::knock() const {
  return {
      .who = self_, .release = std::string(release()), .job = options_.job, .failure = failure_};
}

std::optional<Error> Membership::objection_to(const Knock& knock) const {
  if (knock.release != release()) {
    return Error(ErrorCode::ProtocolMismatch,
                 fmt::format("{} runs Bimetal {} and the job {}; install the same version",
                             knock.who.name, knock.release, release()));
  }
  if (knock.job != options_.job) {
    return Error(ErrorCode::InvalidArgument,
                 fmt::format("{} has another job, or other data, than those who train: give it "
                             "the same job file and the same files",
                             knock.who.name));
  }
  // No epoch with it could begin, and the job would not get on while it waits.
  if (net::is_loopback(knock.who.door.host) && !net::is_loopback(self_.door.host)) {
    return Error(ErrorCode::InvalidArgument,
                 fmt::format("{} listens on loopback, where {} and others cannot reach it: join by "
                             "an address of the network",
                             knock.who.name, self_.host));
  }
  return std::nullopt;
}

/// At the door of the first member that is there, which may be this one.
comm::Group Membership::meet(Round& round) {
  while (true) {
    if (roll_.members.empty()) throw job_is_done();
    const auto roll = roll_;  // which others may know better
    for (const auto& member : roll.members) {
      if (roll != roll_) break;
      if (member.id == self_.id) {
        if (auto group = preside(round)) return *group;
        break;
      }
      if (round.lost.contains(member.id) || round.given_up.contains(member.id)) continue;
      if (auto group = attend(member, round)) return *group;
      if (round.lost.empty()) break;  // sent elsewhere: from the first one again
    }
    if (round.until.expired()) {
      throw Error(ErrorCode::PeerLost, "the other members of the job are not there any more");
    }
    if (roll.find(self_.id) == nullptr) round.lost = round.given_up = {};
    round.wait();
    std::this_thread::sleep_for(kBetweenTries);
  }
}

std::optional<comm::Group> Membership::attend(const Member& host, Round& round) {
  std::unique_ptr<rendezvous::Store> store;
  Answer answer;
  bool reached = false;
  try {
    const auto soon = Deadline::after(options_.silence);
    store = rendezvous::connect_store_at_once(host.door, options_.token, soon);
    const auto theirs = roll_at(*store, soon);
    if (theirs && theirs->epoch > roll_.epoch) {
      roll_ = *theirs;
      round.lost.clear();
      return std::nullopt;
    }
    reached = true;
    auto said = knock();
    said.lost.assign(round.lost.begin(), round.lost.end());
    const bool newcomer = roll_.find(self_.id) == nullptr;
    if (newcomer) round.until = Deadline::after(options_.patience);
    const auto timeout = newcomer ? std::nullopt : std::optional(options_.timeout);
    answer = knock_at(*store, said, options_.silence, timeout, round.wait);
  } catch (const Error& error) {
    if (error.code() == ErrorCode::Unauthorized || error.code() == ErrorCode::ProtocolMismatch) {
      throw;
    }
    if (reached && error.code() == ErrorCode::Timeout) round.given_up.insert(host.id);
    log(LogLevel::info, "the door of {}: {}", host.name, error.what());
    round.lost.insert(host.id);
    return std::nullopt;
  }
  if (answer.error) throw *answer.error;
  if (answer.verdict != Verdict::member) {
    round.lost.clear();
    return std::nullopt;
  }
  try {
    return connect(*store, answer.rank, answer.roll, answer.prefix);
  } catch (const Error& error) {  // somebody was lost meanwhile
    log(LogLevel::info, "epoch {} has not begun: {}", answer.roll.epoch, error.what());
    return std::nullopt;
  }
}

/// With the newcomers that it lets in.
bool Membership::are_enough(Meeting& meeting) const {
  if (!meeting.has_majority()) return false;
  meeting.admit([this](const Knock& who) { return objection_to(who); }, options_.most);
  return meeting.size() >= options_.least;
}

std::optional<comm::Group> Membership::preside(Round& round) {
  Meeting meeting(door_, roll_, self_, options_.silence, options_.timeout);
  meeting.suspect(round.lost);
  meeting.give_up(round.given_up);
  while (true) {
    switch (meeting.look()) {
      case Meeting::State::waiting: break;
      case Meeting::State::elsewhere:
        if (meeting.newer()) roll_ = *meeting.newer();
        round.lost.clear();
        door_.send_elsewhere();
        return std::nullopt;
      case Meeting::State::settled:
        if (const auto failure = failure_ ? failure_ : meeting.failure()) {
          door_.answer_all({.verdict = Verdict::failed, .error = failure});
          throw *failure;
        }
        if (!are_enough(meeting)) {
          if (!std::exchange(round.is_short, true)) {
            round.until = min(round.until, Deadline::after(options_.patience));
          }
          meeting.look_again();
          break;
        }
        const auto prefix = fmt::format("epoch/{}/{}", self_.id, ++meetings_);
        const auto roll = meeting.decide(prefix);
        try {
          return connect(door_.store(), meeting.rank(), roll, prefix);
        } catch (const Error& error) {  // somebody was lost meanwhile
          log(LogLevel::info, "epoch {} has not begun: {}", roll.epoch, error.what());
          return std::nullopt;
        }
    }
    if (round.until.expired()) give_up(failure_.value_or(meeting.shortage(options_.least)));
    round.wait();
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

/// Those who have come end for the same reason, instead of missing this member, too.
void Membership::give_up(const Error& why) {
  const auto visitors = door_.visitors();
  for (const auto& [number, visitor] : visitors) {
    const bool belongs = roll_.find(visitor.knock.who.id) != nullptr;
    door_.answer(number, belongs ? Answer{.verdict = Verdict::failed, .error = why}
                                 : Answer{.verdict = Verdict::elsewhere});
  }
  if (!visitors.empty()) std::this_thread::sleep_for(kToRead);
  throw Error(why);
}

void Membership::show_roll(const Roll& roll) {
  show(door_.store(), roll);
  if (!options_.board || !(own_board_ || roll_.members.front().id == self_.id)) return;
  try {
    const auto soon = Deadline::after(options_.silence);
    show(*rendezvous::connect_store_at_once(*options_.board, options_.token, soon), roll);
  } catch (const Error& error) {
    if (error.code() == ErrorCode::PeerLost) options_.board.reset();  // as machines may be lost
  }
}

comm::Group Membership::connect(rendezvous::Store& store, int rank, const Roll& roll,
                                const std::string& prefix) {
  rendezvous::BootstrapOptions bootstrap;
  bootstrap.token = options_.token;
  bootstrap.listen_host = options_.listen;
  bootstrap.prefix = prefix;
  bootstrap.peer_timeout = options_.silence;
  auto how = options_.group;
  how.epoch = roll.epoch;
  const auto deadline = Deadline::after(kToConnect);
  auto group =
      comm::make_group(rendezvous::connect_mesh(store, rank, static_cast<int>(roll.members.size()),
                                                bootstrap, deadline),
                       how);
  group.barrier(deadline).wait();
  roll_ = roll;
  waits_ = false;
  show_roll(roll_);
  return group;
}

}  // namespace bimetal::membership
