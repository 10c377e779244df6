#pragma once
// The messages between a launcher and its agent on a host: over two pipes, with ssh in between
// where the host is another machine. A message is its kind (u8), a rank or -1 (i32) and its text
// (u32 length, bytes), little-endian. The agent begins with a line of its own (kAgentGreeting),
// since the shell that ssh starts may print something first.
//
//   launcher                           agent
//              ◀──────  hello          its Bimetal's version, host name, address
//   job        ──────▶                 what to run; the first host then listens at the meeting
//   point
//              ◀──────  ready          its port
//   reach      ──────▶                 (the other hosts) can the meeting point be reached?
//              ◀──────  reached
//   start      ──────▶                 with the port; later with a lost rank that is to come back
//              ◀──────  started, output, ended   for each rank
//              ◀──────  elastic        the ranks here go on when others are lost
//              ◀──────  left           what the job has left behind, and where: before a rank's end
//   signal, kill ────▶
//
// Both send beats, so that each notices when the other one, or the network, is gone. `failed` ends
// the job at any time. The end of the stream tells the agent that its launcher is gone.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "bimetal/base/error.h"
#include "bimetal/launch/local/process.h"
#include "bimetal/launch/rank_places.h"
#include "bimetal/net/endpoint.h"

namespace bimetal::launch {

inline constexpr std::string_view kAgentGreeting = "bimetal-agent\n";

enum class AgentMessage : std::uint8_t {
  job = 1,
  reach,
  start,
  signal,
  kill,
  beat,  // both send beats
  hello = 32,
  ready,
  reached,
  started,
  output,
  errors,
  ended,
  elastic,
  failed,
  left,
};

struct Message {
  AgentMessage kind = AgentMessage::beat;
  int rank = -1;
  std::string text = {};
};

std::string encode_message(const Message& message);

/// Cuts a stream into messages.
class MessageReader {
 public:
  void feed(std::string_view bytes) { bytes_ += bytes; }
  /// The next whole one, or nothing. Error(CorruptData) for bytes that are none.
  std::optional<Message> next();

 private:
  std::string bytes_;
};

// ---- texts of the messages; each decode throws Error(CorruptData) ------------------------------

struct AgentHello {
  std::string version;    ///< of Bimetal
  std::string host_name;  ///< the host's own name for itself
  std::string address;    ///< at which sshd was reached there; empty without ssh
};

struct AgentJob {
  struct Rank {
    int rank = 0;
    NamedValues environment;
  };
  std::vector<std::string> command;  ///< command[0] is looked for in PATH unless it has a slash
  std::string directory;             ///< to start in
  bool directory_is_needed = false;  ///< an error where it does not exist, else the home folder
  NamedValues environment;           ///< of all ranks here
  std::vector<Rank> ranks;
  bool is_first_host = false;   ///< whether the meeting point is here
  net::Endpoint master;         ///< port 0: the first host's agent chooses
  std::int64_t silence_ms = 0;  ///< > 0: without a word for so long, the launcher is gone
  bool may_restart = false;     ///< the agent stays when its ranks have ended
};

struct RankEnd {
  int pid = 0;
  ProcessExit exit;
};

std::string encode_hello(const AgentHello& hello);
AgentHello decode_hello(std::string_view text);
std::string encode_job(const AgentJob& job);
AgentJob decode_job(std::string_view text);
std::string encode_end(const RankEnd& end);
RankEnd decode_end(std::string_view text);
std::string encode_error(const Error& error);
Error decode_error(std::string_view text);
std::string encode_number(std::int64_t number);
std::int64_t decode_number(std::string_view text);

/// The launcher's arm on one host: starts the ranks there, hands on their output and signals, and
/// lets none of them outlive the launcher. Speaks this with it over standard input and output until
/// all ranks have ended or the launcher is gone, and returns the process's exit status. `version`
/// is of this Bimetal. Changes this process's environment and working directory: call it once, from
/// main.
int run_host_agent(const std::string& version);

}  // namespace bimetal::launch
