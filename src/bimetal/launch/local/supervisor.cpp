#include "bimetal/launch/local/supervisor.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "bimetal/base/error.h"

namespace bimetal::launch {
namespace {

/// Signals wake it; this is how often it looks in any case.
constexpr std::chrono::milliseconds kLookEvery{200};
/// More than a pipe holds: a rank's last output is read whole.
constexpr std::size_t kMostAtOnce = 1 << 20;

}  // namespace

void RankProcess::send(int signal) {
  if (running()) process_.send(signal);
}

void RankProcess::send_to_group(int signal) {
  if (running()) process_.send_to_group(signal);
}

/// The bytes that can be read without waiting.
std::string RankProcess::read(std::size_t stream) {
  std::string bytes;
  auto& from = streams_[stream];
  if (from && !read_some(from, bytes, kMostAtOnce)) from.close();
  return bytes;
}

RankProcess& Supervisor::start(int rank, const std::string& name, ProcessCommand command,
                               const std::vector<int>& listened_to) {
  std::vector<FileDescriptor> streams, ends_in_rank;
  try {
    for (const int number : listened_to) {
      auto pipe = Pipe::create();
      set_nonblocking(pipe.read);
      command.descriptors.emplace_back(number, pipe.write.number());
      streams.push_back(std::move(pipe.read));
      ends_in_rank.push_back(std::move(pipe.write));
    }
    ranks_.push_back(RankProcess(rank, Process::start(command), std::move(streams)));
  } catch (const Error& error) {
    throw Error(error.code(),
                fmt::format("rank {}{} cannot be started: {}", rank,
                            name.empty() ? "" : fmt::format(" ({})", name), error.what()),
                rank);
  }
  return ranks_.back();
}

bool Supervisor::any_running() const {
  return std::ranges::any_of(ranks_, &RankProcess::running);
}

void Supervisor::wait(WaitSet& others) {
  others.add_readable(signals_.descriptor().number());
  for (const auto& rank : ranks_) {
    if (!rank.running() || !has_room_()) continue;
    for (const auto& stream : rank.streams_) {
      if (stream) others.add_readable(stream.number());
    }
  }
  others.wait(kLookEvery);
  signals_.drain();
}

void Supervisor::look() {
  for (auto& rank : ranks_) {
    if (!rank.running()) continue;
    rank.exit_ = rank.process_.poll();  // before reading: its last output is then in the pipe
    if (rank.running() && !has_room_()) continue;
    for (std::size_t i = 0; i < rank.streams_.size(); ++i) {
      if (auto bytes = rank.read(i); !bytes.empty()) said_(rank, i, std::move(bytes));
    }
    if (!rank.running()) ended_(rank);
  }
}

void Supervisor::kill() {
  for (auto& rank : ranks_) rank.kill();
}

std::string how_it_ended(const ProcessExit& exit) {
  if (exit.signal != 0) {
    return fmt::format("was killed by signal {} ({})", exit.signal, signal_name(exit.signal));
  }
  // A status with which Windows or a library there ends a process is known by its digits in this
  // form.
  if (exit.status < 0)
    return fmt::format("ended with exit status {:#010x}", static_cast<unsigned>(exit.status));
  return fmt::format("ended with exit status {}", exit.status);
}

bool is_fatal(int signal) {
  return signal == kKillSignal || signal == SIGSEGV || signal == kBusSignal || signal == SIGILL ||
         signal == SIGFPE;
}

}  // namespace bimetal::launch
