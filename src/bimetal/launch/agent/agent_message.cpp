#include "bimetal/launch/agent/agent_message.h"

#include <span>

#include "bimetal/base/wire_fields.h"

namespace bimetal::launch {
namespace {

constexpr std::size_t kMessageHeader = 9;
constexpr std::uint32_t kLongestMessage = 16 << 20;

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text));
}

bool is_known(AgentMessage kind) {
  return (kind >= AgentMessage::job && kind <= AgentMessage::beat) ||
         (kind >= AgentMessage::hello && kind <= AgentMessage::left);
}

}  // namespace

template <typename Wire>
void fields(Wire& wire, AgentJob::Rank& rank) {
  wire(rank.rank, rank.environment);
}

template <typename Wire>
void fields(Wire& wire, AgentJob& job) {
  wire(job.command, job.directory, job.directory_is_needed, job.environment, job.ranks,
       job.is_first_host, job.master.host, job.master.port, job.silence_ms, job.may_restart);
}

template <typename Wire>
void fields(Wire& wire, RankEnd& end) {
  wire(end.pid, end.exit.status, end.exit.signal);
}

std::string encode_message(const Message& message) {
  return as_text(write_fields(message.kind, message.rank, message.text));
}

std::optional<Message> MessageReader::next() {
  if (bytes_.size() < kMessageHeader) return std::nullopt;
  FieldReader in(bytes_of(bytes_));
  Message message;
  std::uint32_t length = 0;
  in(message.kind, message.rank, length);
  if (!is_known(message.kind) || length > kLongestMessage) {
    throw Error(ErrorCode::CorruptData, "what comes is no message of a Bimetal launcher");
  }
  if (bytes_.size() < kMessageHeader + length) return std::nullopt;
  message.text = bytes_.substr(kMessageHeader, length);
  bytes_.erase(0, kMessageHeader + length);
  return message;
}

std::string encode_hello(const AgentHello& hello) {
  return as_text(write_fields(hello.version, hello.host_name, hello.address));
}

/// Other versions may say more after these three: it is not looked at.
AgentHello decode_hello(std::string_view text) {
  FieldReader in(bytes_of(text));
  AgentHello hello;
  in(hello.version, hello.host_name, hello.address);
  return hello;
}

std::string encode_job(const AgentJob& job) {
  return as_text(write_fields(job));
}

AgentJob decode_job(std::string_view text) {
  auto job = read_fields<AgentJob>(bytes_of(text));
  if (job.command.empty()) throw Error(ErrorCode::CorruptData, "a job without a command");
  return job;
}

std::string encode_end(const RankEnd& end) {
  return as_text(write_fields(end));
}

RankEnd decode_end(std::string_view text) {
  return read_fields<RankEnd>(bytes_of(text));
}

std::string encode_error(const Error& error) {
  WireWriter out;
  write_error(out, error);
  return as_text(out.bytes());
}

Error decode_error(std::string_view text) {
  return read_error(bytes_of(text));
}

std::string encode_number(std::int64_t number) {
  return as_text(write_fields(number));
}

std::int64_t decode_number(std::string_view text) {
  return read_fields<std::int64_t>(bytes_of(text));
}

}  // namespace bimetal::launch
