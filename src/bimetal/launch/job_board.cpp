#include "bimetal/launch/job_board.h"

#include <fmt/format.h>

#include <asio/ip/host_name.hpp>
#include <chrono>
#include <nlohmann/json.hpp>
#include <sstream>
#include <type_traits>

#include "bimetal/base/error.h"
#include "bimetal/base/typed_text.h"
#include "bimetal/rendezvous/bootstrap.h"

namespace bimetal::launch {
namespace {

using Json = nlohmann::json;

// All keys begin with "board/": ranks use others in the same store.
constexpr const char* kOffer = "board/offer";
constexpr const char* kClaimed = "board/claimed";
constexpr const char* kRanksFrom = "board/ranks/";  // and the machine's first rank
constexpr const char* kClaimedServers = "board/claimed_servers";
constexpr const char* kStarted = "board/started";
constexpr const char* kWithdrawn = "board/withdrawn";
constexpr const char* kInTrouble = "board/in_trouble";
constexpr const char* kWithoutCause = "board/without_cause";
constexpr const char* kFailure = "board/failure";
constexpr const char* kPresent = "board/present";

Deadline soon() {
  return Deadline::after(std::chrono::seconds(10));
}

constexpr std::chrono::milliseconds kWhenHurried{400};
constexpr int kMostInVain = 2;

}  // namespace

void JobBoard::offer(const JobOffer& offer, int workers) {
  store_.add(kClaimed, workers, soon());
  store_.add(kPresent, 1, soon());
  note_ranks(0, workers);
  const Json json = {{"version", offer.version},
                     {"request", offer.request},
                     {"world_size", offer.world_size},
                     {"servers_here", offer.servers_here},
                     {"command", offer.command}};
  store_.set(kOffer, json.dump(), soon());
}

JobOffer JobBoard::read_offer(Deadline deadline) {
  try {
    const auto json = Json::parse(store_.get(kOffer, deadline));
    return {json.at("version"), json.at("request"), json.at("world_size"), json.at("servers_here"),
            json.value("command", std::vector<std::string>())};
  } catch (const Json::exception& error) {
    throw Error(ErrorCode::CorruptData,
                fmt::format("the job offered by the host makes no sense: {}", error.what()));
  }
}

int JobBoard::claim(int workers, int world_size) {
  const auto after = store_.add(kClaimed, workers, soon());
  if (after <= world_size) {
    const auto first = static_cast<int>(after) - workers;
    store_.add(kPresent, 1, soon());
    note_ranks(first, workers);
    return first;
  }
  const auto before = static_cast<int>(store_.add(kClaimed, -workers, soon()));
  const int free = world_size - before;
  throw Error(ErrorCode::InvalidArgument,
              fmt::format("{} of the job's {} joined, so that it waits for {}, and this machine "
                          "offers {}: {}start the job with --world-size {}, or join an elastic "
                          "job once it trains, when it takes any number",
                          before, counted(world_size, "worker has", "workers have"),
                          free > 0 ? fmt::format("{} more", free) : "nobody", workers,
                          free > 0 ? "offer fewer (one --worker for each, or -n), " : "",
                          before + workers));
}

void JobBoard::note_ranks(int first, int count) {
  store_.set(fmt::format("{}{}", kRanksFrom, first),
             fmt::format("{} {}", count, asio::ip::host_name()), soon());
}

std::vector<HostRanks> JobBoard::machines(int world_size) {
  std::vector<HostRanks> machines;
  for (int first = 0; first < world_size; first += machines.back().count) {
    const auto text = store_.get(fmt::format("{}{}", kRanksFrom, first), soon());
    auto& machine = machines.emplace_back(HostRanks{.name = {}, .first_rank = first, .count = 0});
    std::istringstream(text) >> machine.count >> machine.name;
    if (machine.count > 0) continue;
    throw Error(ErrorCode::CorruptData,
                fmt::format("the machine of rank {} says that it has '{}' ranks", first, text));
  }
  return machines;
}

int JobBoard::claim_later(int workers) {
  store_.add(kPresent, 1, soon());
  return static_cast<int>(store_.add(kClaimed, workers, soon())) - workers;
}

int JobBoard::claim_server(const JobOffer& offer, int servers) {
  const auto taken = offer.servers_here + store_.add(kClaimedServers, 1, soon());
  if (taken <= servers) {
    store_.add(kPresent, 1, soon());
    return static_cast<int>(taken) - 1;
  }
  store_.add(kClaimedServers, -1, soon());
  throw Error(ErrorCode::InvalidArgument,
              fmt::format("the job has all of its {} parameter servers (servers.count); its "
                          "first machine runs {}: see --servers-here there",
                          servers, offer.servers_here));
}

int JobBoard::claimed() {
  return static_cast<int>(store_.add(kClaimed, 0, soon()));
}

void JobBoard::start() {
  store_.set(kStarted, "1", soon());
}

bool JobBoard::started() {
  return store_.try_get(kStarted, soon()).has_value();
}

void JobBoard::withdraw(const std::string& host_name) {
  store_.set(kWithdrawn, host_name, soon());
}

std::optional<std::string> JobBoard::withdrawn() {
  return store_.try_get(kWithdrawn, soon());
}

void JobBoard::note_trouble() {
  store_.hurry();
  store_.add(kInTrouble, 1, soon());
}

void JobBoard::fail(const Error& cause, const std::string& host_name) {
  const Error told(cause.code(), fmt::format("on {}: {}", host_name, cause.what()), cause.rank());
  rendezvous::note_failure(store_, kFailure, told, soon());
}

std::optional<Error> JobBoard::failure() {
  return rendezvous::noted_failure(store_, kFailure, soon());
}

void JobBoard::know_no_cause() {
  store_.add(kWithoutCause, 1, soon());
}

bool JobBoard::cause_may_come() {
  return store_.add(kInTrouble, 0, soon()) > store_.add(kWithoutCause, 0, soon());
}

bool JobBoard::in_trouble() {
  return store_.add(kInTrouble, 0, soon()) > 0;
}

void JobBoard::leave() {
  store_.add(kPresent, -1, soon());
}

bool JobBoard::everyone_left() {
  return store_.add(kPresent, 0, soon()) <= 0;
}

template <typename Call>
auto JobStore::ask(Call call, Deadline deadline) {
  if (!hurried_) return call(deadline);
  if (in_vain_ >= kMostInVain) {
    throw Error(ErrorCode::PeerLost, "the job's first machine does not answer any more");
  }
  try {
    if constexpr (std::is_void_v<decltype(call(deadline))>) {
      call(min(deadline, Deadline::after(kWhenHurried)));
      in_vain_ = 0;
    } else {
      auto answer = call(min(deadline, Deadline::after(kWhenHurried)));
      in_vain_ = 0;
      return answer;
    }
  } catch (const Error& error) {
    if (error.code() == ErrorCode::Timeout) ++in_vain_;
    throw;
  }
}

void JobStore::set(std::string_view key, std::string_view value, Deadline deadline) {
  ask([&](Deadline until) { store_->set(key, value, until); }, deadline);
}

/// Not hurried: that nobody has set a key looks the same as silence.
std::string JobStore::get(std::string_view key, Deadline deadline) {
  return store_->get(key, deadline);
}

std::optional<std::string> JobStore::try_get(std::string_view key, Deadline deadline) {
  return ask([&](Deadline until) { return store_->try_get(key, until); }, deadline);
}

std::int64_t JobStore::add(std::string_view key, std::int64_t delta, Deadline deadline) {
  return ask([&](Deadline until) { return store_->add(key, delta, until); }, deadline);
}

}  // namespace bimetal::launch
