#include "bimetal/launch/agent/agent_message.h"

#include <fmt/format.h>

#include "bimetal/base/error.h"

namespace bimetal::launch {
namespace {

constexpr std::size_t kMessageHeader = 9;
constexpr std::uint32_t kLongestMessage = 16 << 20;

std::string text_of(const WireWriter& writer) {
  return {reinterpret_cast<const char*>(writer.bytes().data()), writer.bytes().size()};
}

WireReader reader_of(std::string_view text) {
  return WireReader(std::as_bytes(std::span(text.data(), text.size())));
}

void write_values(WireWriter& out, const NamedValues& values) {
  out.u32(static_cast<std::uint32_t>(values.size()));
  for (const auto& [name, value] : values) {
    out.string(name);
    out.string(value);
  }
}

NamedValues read_values(WireReader& in) {
  NamedValues values;
  for (std::uint32_t left = in.u32(); left > 0; --left) {
    auto name = in.string();
    values.emplace_back(std::move(name), in.string());
  }
  return values;
}

bool is_known(std::uint8_t kind) {
  return (kind >= static_cast<std::uint8_t>(AgentMessage::job) &&
          kind <= static_cast<std::uint8_t>(AgentMessage::beat)) ||
         (kind >= static_cast<std::uint8_t>(AgentMessage::hello) &&
          kind <= static_cast<std::uint8_t>(AgentMessage::failed));
}

}  // namespace

std::string encode_message(const Message& message) {
  WireWriter out;
  out.u8(static_cast<std::uint8_t>(message.kind));
  out.i32(message.rank);
  out.string(message.text);
  return text_of(out);
}

std::optional<Message> MessageReader::next() {
  if (bytes_.size() < kMessageHeader) return std::nullopt;
  auto in = reader_of(bytes_);
  const auto kind = in.u8();
  Message message{static_cast<AgentMessage>(kind), in.i32()};
  const auto length = in.u32();
  if (!is_known(kind) || length > kLongestMessage) {
    throw Error(ErrorCode::CorruptData, "what comes is no message of a Bimetal launcher");
  }
  if (bytes_.size() < kMessageHeader + length) return std::nullopt;
  message.text = bytes_.substr(kMessageHeader, length);
  bytes_.erase(0, kMessageHeader + length);
  return message;
}

std::string encode_hello(const AgentHello& hello) {
  WireWriter out;
  out.string(hello.version);
  out.string(hello.host_name);
  out.string(hello.address);
  return text_of(out);
}

/// Other versions may say more after these three: it is not looked at.
AgentHello decode_hello(std::string_view text) {
  auto in = reader_of(text);
  AgentHello hello;
  hello.version = in.string();
  hello.host_name = in.string();
  hello.address = in.string();
  return hello;
}

std::string encode_job(const AgentJob& job) {
  WireWriter out;
  out.u32(static_cast<std::uint32_t>(job.command.size()));
  for (const auto& word : job.command) out.string(word);
  out.string(job.directory);
  out.u8(job.directory_is_needed);
  write_values(out, job.environment);
  out.u32(static_cast<std::uint32_t>(job.ranks.size()));
  for (const auto& [rank, environment] : job.ranks) {
    out.i32(rank);
    write_values(out, environment);
  }
  out.u8(job.is_first_host);
  out.string(job.master.host);
  out.u16(job.master.port);
  out.i64(job.silence_ms);
  out.u8(job.may_restart);
  return text_of(out);
}

AgentJob decode_job(std::string_view text) {
  auto in = reader_of(text);
  AgentJob job;
  for (std::uint32_t left = in.u32(); left > 0; --left) job.command.push_back(in.string());
  job.directory = in.string();
  job.directory_is_needed = in.u8() != 0;
  job.environment = read_values(in);
  for (std::uint32_t left = in.u32(); left > 0; --left) {
    const int rank = in.i32();
    job.ranks.push_back({rank, read_values(in)});
  }
  job.is_first_host = in.u8() != 0;
  job.master.host = in.string();
  job.master.port = in.u16();
  job.silence_ms = in.i64();
  job.may_restart = in.u8() != 0;
  in.expect_end();
  if (job.command.empty()) throw Error(ErrorCode::CorruptData, "a job without a command");
  return job;
}

std::string encode_end(const RankEnd& end) {
  WireWriter out;
  out.i32(end.pid);
  out.i32(end.exit.status);
  out.i32(end.exit.signal);
  return text_of(out);
}

RankEnd decode_end(std::string_view text) {
  auto in = reader_of(text);
  RankEnd end;
  end.pid = in.i32();
  end.exit.status = in.i32();
  end.exit.signal = in.i32();
  in.expect_end();
  return end;
}

std::string encode_error(const Error& error) {
  WireWriter out;
  write_error(out, error);
  return text_of(out);
}

Error decode_error(std::string_view text) {
  return read_error(std::as_bytes(std::span(text)));
}

std::string encode_number(std::int64_t number) {
  WireWriter out;
  out.i64(number);
  return text_of(out);
}

std::int64_t decode_number(std::string_view text) {
  auto in = reader_of(text);
  const auto number = in.i64();
  in.expect_end();
  return number;
}

}  // namespace bimetal::launch
