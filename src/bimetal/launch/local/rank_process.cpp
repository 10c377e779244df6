#include "bimetal/launch/local/rank_process.h"

#include <fmt/format.h>

#include <utility>

namespace bimetal::launch {

RankProcess::RankProcess(int rank, ProcessCommand command, const std::vector<int>& listened_to)
    : rank_(rank) {
  std::vector<FileDescriptor> ends_in_rank;
  for (const int number : listened_to) {
    auto pipe = Pipe::create();
    set_nonblocking(pipe.read);
    command.descriptors.emplace_back(number, pipe.write.number());
    streams_.push_back(std::move(pipe.read));
    ends_in_rank.push_back(std::move(pipe.write));
  }
  process_ = Process::start(command);
}

void RankProcess::add_to(WaitSet& news) const {
  for (const auto& stream : streams_) {
    if (stream) news.add_readable(stream.number());
  }
}

void RankProcess::look() {
  if (running()) exit_ = process_->poll();
}

void RankProcess::send(int signal) {
  if (running()) process_->send(signal);
}

void RankProcess::send_to_group(int signal) {
  if (running()) process_->send_to_group(signal);
}

std::string how_it_ended(const ProcessExit& exit) {
  if (exit.signal != 0) {
    return fmt::format("was killed by signal {} ({})", exit.signal, signal_name(exit.signal));
  }
  // What Windows or a library there ends a process with is known by its digits in this form.
  if (exit.status < 0)
    return fmt::format("ended with exit status {:#010x}", static_cast<unsigned>(exit.status));
  return fmt::format("ended with exit status {}", exit.status);
}

bool is_fatal(int signal) {
  return signal == kKillSignal || signal == SIGSEGV || signal == kBusSignal || signal == SIGILL ||
         signal == SIGFPE;
}

}  // namespace bimetal::launch
