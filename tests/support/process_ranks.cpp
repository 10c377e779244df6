#include "support/process_ranks.h"

#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>

#include "bimetal/rendezvous/bootstrap.h"
#include "bimetal/rendezvous/store.h"

namespace bimetal::testing {
namespace {

constexpr std::chrono::seconds kStartUp{60};

void write_line(int fd, const std::string& line) {
  const std::string text = line + "\n";
  for (std::size_t sent = 0; sent < text.size();) {
    const auto written = ::write(fd, text.data() + sent, text.size() - sent);
    if (written <= 0) _exit(3);
    sent += static_cast<std::size_t>(written);
  }
}

// A rank's whole life. Rank 0 serves the store and tells its port; the others are given it.
void run_rank(int rank, int n, std::uint16_t port, int pipe, const ProcessRanks::Body& body,
              const comm::GroupOptions& options) {
  const auto tell = [&](const std::string& line) { write_line(pipe, line); };
  try {
    const auto deadline = Deadline::after(kStartUp);
    std::unique_ptr<rendezvous::StoreServer> server;
    if (rank == 0) {
      server =
          std::make_unique<rendezvous::StoreServer>(net::Endpoint{"127.0.0.1", 0}, net::Token());
      port = server->endpoint().port;
      tell(std::to_string(port));
    }
    const auto store = rendezvous::connect_store({"127.0.0.1", port}, {}, deadline);
    body(rank, comm::make_group(rendezvous::connect_mesh(*store, rank, n, {}, deadline), options),
         tell);
    tell("done");
  } catch (const Error& error) {
    tell(fmt::format("error {} {} {}", static_cast<int>(error.code()), error.rank().value_or(-1),
                     error.what()));
  } catch (const std::exception& error) {
    tell(fmt::format("error {} -1 {}", static_cast<int>(ErrorCode::Internal), error.what()));
  }
}

RankOutcome parse_outcome(const std::string& line) {
  int code = 0, rank = -1, text = 0;
  if (std::sscanf(line.c_str(), "error %d %d %n", &code, &rank, &text) < 2) return {};
  return {static_cast<ErrorCode>(code), rank < 0 ? std::nullopt : std::optional(rank),
          line.substr(static_cast<std::size_t>(text))};
}

}  // namespace

ProcessRanks::ProcessRanks(int n, const Body& body, const comm::GroupOptions& options)
    : ProcessRanks(body, std::vector(static_cast<std::size_t>(n), options)) {}

ProcessRanks::ProcessRanks(const Body& body, const std::vector<comm::GroupOptions>& options)
    : children_(options.size()) {
  const int n = static_cast<int>(options.size());
  std::uint16_t port = 0;
  for (int rank = 0; rank < n; ++rank) {
    std::array<int, 2> ends;
    if (::pipe(ends.data()) != 0) throw system_error("cannot make a pipe", errno);
    const pid_t pid = ::fork();
    if (pid < 0) throw system_error("cannot fork", errno);
    if (pid == 0) {
      run_rank(rank, n, port, ends[1], body, options[static_cast<std::size_t>(rank)]);
      _exit(0);
    }
    ::close(ends[1]);
    children_[rank] = {pid, ends[0], {}};
    if (rank == 0) {
      const auto line = read_line(children_[0], Deadline::after(kStartUp));
      port = static_cast<std::uint16_t>(std::stoi(line.value_or("0")));
    }
  }
}

ProcessRanks::~ProcessRanks() {
  for (auto& child : children_) {
    if (child.pid < 0) continue;
    ::kill(child.pid, SIGKILL);
    ::waitpid(child.pid, nullptr, 0);
    ::close(child.pipe);
  }
}

void ProcessRanks::signal(int rank, int number) {
  ::kill(children_[rank].pid, number);
}

std::optional<std::string> ProcessRanks::read_line(Child& child, Deadline deadline) {
  for (;;) {
    const auto end = child.unread.find('\n');
    if (end != std::string::npos) {
      auto line = child.unread.substr(0, end);
      child.unread.erase(0, end + 1);
      return line;
    }
    pollfd poll_for{child.pipe, POLLIN, 0};
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline.remaining());
    if (::poll(&poll_for, 1, static_cast<int>(left.count())) == 0) {
      throw Error(ErrorCode::Timeout, "a rank's process told nothing in time");
    }
    std::array<char, 4096> bytes;
    const auto size = ::read(child.pipe, bytes.data(), bytes.size());
    if (size == 0) return std::nullopt;
    if (size > 0) child.unread.append(bytes.data(), static_cast<std::size_t>(size));
  }
}

void ProcessRanks::expect(int rank, const std::string& line, Deadline deadline) {
  const auto told = read_line(children_[rank], deadline);
  if (told != line) {
    throw Error(ErrorCode::Internal,
                fmt::format("rank {} told '{}', not '{}'", rank, told.value_or("nothing"), line));
  }
}

RankOutcome ProcessRanks::outcome(int rank, Deadline deadline) {
  const auto line = read_line(children_[rank], deadline);
  if (!line) throw Error(ErrorCode::PeerLost, fmt::format("rank {} ended untimely", rank), rank);
  return parse_outcome(*line);
}

}  // namespace bimetal::testing
