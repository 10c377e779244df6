#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <sstream>
#include <thread>

#include "bimetal/base/error.h"
#include "bimetal/parallel/server/directory/directory.h"
#include "bimetal/parallel/server/link/questions.h"
#include "bimetal/parallel/server/shard_plan.h"

namespace bimetal::parallel::server {
namespace {

constexpr std::chrono::milliseconds kLookForWeights{50};
constexpr std::chrono::seconds kForOneServer{5};
/// The most workers that measure: more would tell little and take long.
constexpr std::size_t kMostMeasuring = 4;

constexpr const char* kWeights = "weights";
constexpr const char* kWorkers = "weights/workers";
constexpr const char* kTurn = "weights/turn";

std::string name_of_result(std::int64_t worker) {
  return fmt::format("weights/measured/{}", worker);
}

std::string name_of_rate_server(int server) {
  return fmt::format("{}/rate", server);
}

/// Numbers above 0, or nothing.
std::vector<double> numbers_of(const std::string& text) {
  std::istringstream in(text);
  std::vector<double> numbers;
  for (double number = 0; in >> number;) numbers.push_back(number);
  const bool good = in.eof() && std::ranges::all_of(numbers, [](double number) {
                      return number > 0 && std::isfinite(number);
                    });
  return good ? numbers : std::vector<double>();
}

/// The result of `look`, once there is one; nothing at the deadline.
template <typename Look>
auto wait_for(const Weighing& weighing, Deadline deadline, Look look) -> decltype(look()) {
  for (;;) {
    if (auto found = look()) return found;
    for (int server = 0; server < weighing.servers; ++server) {
      if (!weighing.directory.withdrawn(server)) continue;
      throw Error(ErrorCode::PeerLost,
                  fmt::format("parameter server {} is lost: it ended before the job began", server),
                  server);
    }
    if (weighing.directory.stopped())
      throw Error(ErrorCode::Aborted, "stopped before the job began");
    if (deadline.expired()) return {};
    std::this_thread::sleep_for(kLookForWeights);
  }
}

std::optional<std::string> wait_for_entry(const Weighing& weighing, const std::string& name,
                                          Deadline deadline) {
  return wait_for(weighing, deadline, [&] { return weighing.directory.read(name); });
}

std::vector<double> agreed(const Weighing& weighing, const std::string& text) {
  auto weights = numbers_of(text);
  if (weights.size() == static_cast<std::size_t>(weighing.servers)) return weights;
  throw Error(ErrorCode::CorruptData, "the servers' weights in the job's store make no sense");
}

[[noreturn]] void throw_not_there(int server) {
  throw Error(
      ErrorCode::Timeout,
      fmt::format("parameter server {} was not there within cluster.join_timeout_s", server));
}

std::vector<net::Endpoint> rate_servers(const Weighing& weighing) {
  std::vector<net::Endpoint> all;
  for (int server = 0; server < weighing.servers; ++server) {
    const auto at =
        wait_for_entry(weighing, name_of_rate_server(server), weighing.directory.deadline());
    if (!at) throw_not_there(server);
    all.push_back(net::parse_endpoint(*at));
  }
  return all;
}

/// The weights of server 0. It is chance whose deadline comes first: a server that has kept server
/// 0 waiting is named by all.
std::vector<double> weights_of_server_0(const Weighing& weighing,
                                        const std::optional<std::string>& text) {
  if (text) return agreed(weighing, *text);
  for (int server = 0; server < weighing.servers; ++server) {
    if (!weighing.directory.read(name_of_rate_server(server))) throw_not_there(server);
  }
  throw Error(ErrorCode::Timeout,
              "server 0 has not said within cluster.join_timeout_s how much "
              "each parameter server is to keep");
}

/// "up down up down …", bytes per second.
std::string measured_here(const Weighing& weighing) {
  std::string text;
  const auto servers = rate_servers(weighing);
  for (std::size_t server = 0; server < servers.size(); ++server) {
    const auto name = fmt::format("server {} ({})", server, net::to_string(servers[server]));
    const auto rate =
        measure_rate(servers[server], name, weighing.credentials, Deadline::after(kForOneServer));
    text += fmt::format("{} {} ", rate.up, rate.down);
  }
  return text.substr(0, text.size() - 1);
}

std::vector<LinkRate> rates_of(const std::string& text, int servers) {
  const auto numbers = numbers_of(text);
  if (numbers.size() != 2 * static_cast<std::size_t>(servers)) return {};
  std::vector<LinkRate> rates;
  for (std::size_t i = 0; i < numbers.size(); i += 2) rates.push_back({numbers[i], numbers[i + 1]});
  return rates;
}

/// By the workers that are there, the first of which is waited for.
std::vector<std::vector<LinkRate>> rates_by_worker(const Weighing& weighing) {
  auto& directory = weighing.directory;
  std::vector<std::vector<LinkRate>> rows;
  for (std::int64_t worker = 1; rows.size() < kMostMeasuring; ++worker) {
    const auto there = [&] { return directory.count(kWorkers, 0) >= worker; };
    if (!wait_for(weighing, rows.empty() ? directory.deadline() : Deadline::after({}), there))
      break;
    directory.write(kTurn, std::to_string(worker));
    const auto text = wait_for_entry(weighing, name_of_result(worker),
                                     Deadline::after(kForOneServer * (weighing.servers + 1)));
    auto rates = rates_of(text.value_or(""), weighing.servers);
    if (!rates.empty()) rows.push_back(std::move(rates));
  }
  if (rows.empty()) {
    throw Error(ErrorCode::Timeout,
                "no worker was there within cluster.join_timeout_s to measure the links to the "
                "parameter servers; explicit weights, as in servers.count = [1, 1], need none");
  }
  return rows;
}

/// The rate of server `server`, up and down together, as the mean worker sees it.
double megabits(const std::vector<std::vector<LinkRate>>& rows, std::size_t server) {
  double seconds = 0;
  for (const auto& row : rows) seconds += 1 / row[server].up + 1 / row[server].down;
  return 8e-6 * 2 * static_cast<double>(rows.size()) / seconds;
}

std::string told(const std::vector<std::vector<LinkRate>>& rows,
                 const std::vector<double>& weights) {
  std::vector<std::string> rates;
  for (std::size_t server = 0; server < weights.size(); ++server) {
    rates.push_back(fmt::format("{:.0f}", megabits(rows, server)));
  }
  return fmt::format(
      "the links to the parameter servers carry {} Mbit/s, so they keep parts of the "
      "parameters as {}",
      fmt::join(rates, ", "), fmt::join(weights, " : "));
}

std::vector<double> decided(const Weighing& weighing, progress::Observer& observer) {
  const auto at = rate_servers(weighing);
  const bool one_host = std::ranges::all_of(
      at, [&](const net::Endpoint& other) { return other.host == at.front().host; });
  if (one_host) return std::vector<double>(at.size(), 1);
  observer.on_phase("measuring the links to the parameter servers");
  const auto rows = rates_by_worker(weighing);
  auto weights = weights_of(rows);
  observer.on_notice(told(rows, weights));
  return weights;
}

}  // namespace

std::vector<double> weigh_as_server(const Weighing& weighing, int server,
                                    const std::string& listen_host, progress::Observer& observer) {
  const RateServer rate_server({listen_host, 0}, weighing.credentials);
  weighing.directory.write(name_of_rate_server(server), net::to_string(rate_server.endpoint()));
  if (server == 0) {
    auto weights = decided(weighing, observer);
    weighing.directory.write(kWeights, fmt::format("{}", fmt::join(weights, " ")));
    return weights;
  }
  return weights_of_server_0(weighing,
                             wait_for_entry(weighing, kWeights, weighing.directory.deadline()));
}

std::vector<double> weigh_as_worker(const Weighing& weighing) {
  auto& directory = weighing.directory;
  if (const auto text = directory.read(kWeights)) return agreed(weighing, *text);
  const auto own = directory.count(kWorkers, 1);
  bool measured = false;
  const auto look = [&] {
    auto text = directory.read(kWeights);
    if (!text && !measured && directory.read(kTurn) == std::to_string(own)) {
      measured = true;
      std::string result = "failed";  // another one is to try
      try {
        result = measured_here(weighing);
      } catch (const Error&) {
        // The fault shows when this worker joins the servers.
      }
      directory.write(name_of_result(own), result);
    }
    return text;
  };
  return weights_of_server_0(weighing, wait_for(weighing, directory.deadline(), look));
}

}  // namespace bimetal::parallel::server
