#include "bimetal/parallel/server/directory/directory.h"

#include <fmt/format.h>

#include <chrono>
#include <thread>
#include <utility>

#include "bimetal/base/error.h"
#include "bimetal/base/log.h"
#include "bimetal/rendezvous/bootstrap.h"

namespace bimetal::parallel::server {
namespace {

constexpr std::chrono::seconds kToTell{5};
constexpr std::chrono::seconds kToAsk{1};
constexpr std::chrono::milliseconds kLookForServer{50};
constexpr std::string_view kEnded = "ended", kFinished = "finished";
constexpr const char* kData = "data";
constexpr const char* kNoData = "none";

std::string key_of(int server) {
  return fmt::format("parameter_server/{}", server);
}

std::string key_named(std::string_view name) {
  return fmt::format("parameter_server/{}", name);
}

std::string key_of_gone(int server) {
  return key_of(server) + "/gone";
}

}  // namespace

ServerDirectory::ServerDirectory(DirectoryOptions options) : options_(std::move(options)) {
  if (options_.serves_store) store_server_.emplace(options_.store, options_.token);
  store_ = rendezvous::connect_store(options_.store, options_.token, options_.deadline);
}

void ServerDirectory::publish(int server, const net::Endpoint& endpoint) {
  store_->set(key_of(server), net::to_string(endpoint), options_.deadline);
}

std::optional<std::string> ServerDirectory::wait_for(int server, const std::string& key) {
  // A process that looks once training goes on finds everybody there.
  const auto deadline = options_.deadline.expired() ? Deadline::after(kToTell) : options_.deadline;
  while (!deadline.expired()) {
    if (withdrawn(server)) return std::nullopt;
    if (auto value = store_->try_get(key, deadline)) return value;
    if (stopped()) {
      throw Error(ErrorCode::Aborted,
                  fmt::format("stopped before parameter server {} was there", server));
    }
    std::this_thread::sleep_for(kLookForServer);
  }
  throw Error(
      ErrorCode::Timeout,
      fmt::format("parameter server {} was not there within cluster.join_timeout_s", server));
}

std::optional<net::Endpoint> ServerDirectory::find(int server) {
  const auto address = wait_for(server, key_of(server));
  return address ? std::optional(net::parse_endpoint(*address)) : std::nullopt;
}

FoundServers ServerDirectory::find_all(int servers, int shards) {
  FoundServers found;
  for (int server = 0; server < servers; ++server) {
    const auto at = find(server);
    found.servers.push_back(at.value_or(net::Endpoint{}));
    if (at) continue;
    found.gone.insert(server);
    if (options_.copies && !found.gone.contains(server - shards)) continue;
    throw Error(
        ErrorCode::PeerLost,
        fmt::format("parameter server {} is lost: it ended before this worker had joined it",
                    server),
        server);
  }
  return found;
}

void ServerDirectory::publish_data(const std::optional<net::Endpoint>& endpoint) {
  unless_gone([&] { write(kData, endpoint ? net::to_string(*endpoint) : kNoData); });
}

std::optional<net::Endpoint> ServerDirectory::find_data() {
  // A server that takes over from server 0 has written there, too.
  auto address = read(kData);
  if (!address) address = wait_for(0, key_named(kData));
  if (!address) {
    throw Error(ErrorCode::PeerLost,
                "parameter server 0 is lost: it ended before it sent its data to those who have "
                "none",
                0);
  }
  return *address == kNoData ? std::nullopt : std::optional(net::parse_endpoint(*address));
}

void ServerDirectory::publish_at(std::string_view key, const net::Endpoint& endpoint) {
  unless_gone([&] { store_->set(key, net::to_string(endpoint), Deadline::after(kToTell)); });
}

void ServerDirectory::withdraw(int server) {
  unless_gone([&] {
    const Error gone(ErrorCode::PeerLost, fmt::format("parameter server {} is lost", server),
                     server);
    rendezvous::note_failure(*store_, key_of_gone(server), gone, Deadline::after(kToTell));
  });
}

bool ServerDirectory::withdrawn(int server) {
  bool is = false;
  unless_gone([&] {
    const auto until = Deadline::after(kToTell);
    is = rendezvous::noted_failure(*store_, key_of_gone(server), until).has_value();
  });
  return is;
}

void ServerDirectory::end() {
  unless_gone([&] { write(kEnded, "1"); });
}

bool ServerDirectory::ended() {
  bool has = false;
  unless_gone([&] { has = read(kEnded).has_value(); });
  return has;
}

bool ServerDirectory::known_to_have_ended() {
  try {
    return ended();
  } catch (const Error&) {
    return false;
  }
}

void ServerDirectory::finish() {
  unless_gone([&] { write(kFinished, "1"); });
}

/// Without copies the job cannot go on anyhow, and the store's error is worth telling.
void ServerDirectory::unless_gone(const std::function<void()>& ask) {
  if (gone_) return;
  try {
    ask();
  } catch (const Error& error) {
    if (!options_.copies) throw;
    gone_ = true;
    log(LogLevel::info, "the job's first machine does not answer any more: {}", error.what());
  }
}

void ServerDirectory::write(std::string_view name, std::string_view value) {
  store_->set(key_named(name), value, Deadline::after(kToTell));
}

std::optional<std::string> ServerDirectory::read(std::string_view name) {
  return store_->try_get(key_named(name), Deadline::after(kToTell));
}

std::int64_t ServerDirectory::count(std::string_view name, std::int64_t more) {
  return store_->add(key_named(name), more, Deadline::after(kToTell));
}

bool has_ended(rendezvous::Store& store) {
  return store.try_get(key_named(kEnded), Deadline::after(kToAsk)).has_value();
}

void note_lost_server(rendezvous::Store& store, int server, const Error& how) {
  try {
    rendezvous::note_failure(store, key_of_gone(server), how, Deadline::after(kToTell));
  } catch (const Error&) {
    // The store is gone, and with it anybody who would look.
  }
}

bool has_finished(rendezvous::Store& store) {
  return store.try_get(key_named(kFinished), Deadline::after(kToAsk)).has_value();
}

}  // namespace bimetal::parallel::server
