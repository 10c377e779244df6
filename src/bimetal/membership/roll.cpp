#include "bimetal/membership/roll.h"

#include <algorithm>
#include <span>

#include "bimetal/base/wire.h"

namespace bimetal::membership {
namespace {

std::string text_of(const WireWriter& out) {
  const auto& bytes = out.bytes();
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

WireReader reader_of(std::string_view bytes) {
  return WireReader(std::as_bytes(std::span(bytes.data(), bytes.size())));
}

void write(WireWriter& out, const Member& member) {
  out.u64(member.id);
  out.string(member.host);
  out.string(member.name);
  out.string(member.door.host);
  out.u16(member.door.port);
}

Member read_member(WireReader& in) {
  Member member;
  member.id = in.u64();
  member.host = in.string();
  member.name = in.string();
  member.door.host = in.string();
  member.door.port = in.u16();
  return member;
}

void write(WireWriter& out, const std::optional<Error>& error) {
  WireWriter text;
  if (error) write_error(text, *error);
  out.string(text_of(text));
}

std::optional<Error> read_optional_error(WireReader& in) {
  const auto text = in.string();
  if (text.empty()) return std::nullopt;
  return read_error(std::as_bytes(std::span(text)));
}

void write(WireWriter& out, const Roll& roll) {
  out.u32(roll.epoch);
  out.string(roll.keeper);
  out.u32(static_cast<std::uint32_t>(roll.members.size()));
  for (const auto& member : roll.members) write(out, member);
}

Roll read_roll(WireReader& in) {
  Roll roll;
  roll.epoch = in.u32();
  roll.keeper = in.string();
  const auto members = in.u32();
  for (std::uint32_t i = 0; i < members; ++i) roll.members.push_back(read_member(in));
  return roll;
}

}  // namespace

const Member* Roll::find(std::uint64_t id) const {
  const auto found = std::ranges::find(members, id, &Member::id);
  return found == members.end() ? nullptr : &*found;
}

std::string encode_roll(const Roll& roll) {
  WireWriter out;
  write(out, roll);
  return text_of(out);
}

Roll decode_roll(std::string_view bytes) {
  auto in = reader_of(bytes);
  auto roll = read_roll(in);
  in.expect_end();
  return roll;
}

std::string encode_knock(const Knock& knock) {
  WireWriter out;
  write(out, knock.who);
  out.u32(knock.epoch);
  out.u32(static_cast<std::uint32_t>(knock.lost.size()));
  for (const auto id : knock.lost) out.u64(id);
  out.string(knock.release);
  out.string(knock.job);
  write(out, knock.failure);
  return text_of(out);
}

Knock decode_knock(std::string_view bytes) {
  auto in = reader_of(bytes);
  Knock knock;
  knock.who = read_member(in);
  knock.epoch = in.u32();
  const auto lost = in.u32();
  for (std::uint32_t i = 0; i < lost; ++i) knock.lost.push_back(in.u64());
  knock.release = in.string();
  knock.job = in.string();
  knock.failure = read_optional_error(in);
  in.expect_end();
  return knock;
}

std::string encode_answer(const Answer& answer) {
  WireWriter out;
  out.u8(static_cast<std::uint8_t>(answer.verdict));
  out.i32(answer.rank);
  write(out, answer.roll);
  out.string(answer.prefix);
  write(out, answer.error);
  return text_of(out);
}

Answer decode_answer(std::string_view bytes) {
  auto in = reader_of(bytes);
  Answer answer;
  const auto verdict = in.u8();
  if (verdict > static_cast<std::uint8_t>(Verdict::failed)) {
    throw Error(ErrorCode::CorruptData, "the answer of a member makes no sense");
  }
  answer.verdict = static_cast<Verdict>(verdict);
  answer.rank = in.i32();
  answer.roll = read_roll(in);
  answer.prefix = in.string();
  answer.error = read_optional_error(in);
  in.expect_end();
  return answer;
}

}  // namespace bimetal::membership
