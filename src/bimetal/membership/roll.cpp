#include "bimetal/membership/roll.h"

#include <algorithm>
#include <span>

#include "bimetal/base/wire.h"
#include "bimetal/base/wire_fields.h"

namespace bimetal::membership {
namespace {

std::string text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

/// As text, which is empty where there is none.
std::string text_of(const std::optional<Error>& error) {
  WireWriter out;
  if (error) write_error(out, *error);
  return text_of(out.bytes());
}

std::optional<Error> error_in(const std::string& text) {
  if (text.empty()) return std::nullopt;
  return read_error(std::as_bytes(std::span(text)));
}

template <typename Wire>
void fields(Wire& wire, Member& member) {
  wire(member.id, member.host, member.name, member.door.host, member.door.port);
}

template <typename Wire>
void fields(Wire& wire, Roll& roll) {
  wire(roll.epoch, roll.keeper);
  wire.each(roll.members, [&wire](Member& member) { fields(wire, member); });
}

template <typename Wire>
void fields(Wire& wire, Knock& knock, std::string& failure) {
  fields(wire, knock.who);
  wire(knock.lost, knock.release, knock.job, failure);
}

template <typename Wire>
void fields(Wire& wire, Answer& answer, std::string& error) {
  wire(answer.verdict, answer.rank);
  fields(wire, answer.roll);
  wire(answer.prefix, error);
}

/// What is written is what is read.
template <typename... Parts>
std::string encode(Parts&... parts) {
  FieldWriter out;
  fields(out, parts...);
  return text_of(std::move(out).take());
}

template <typename... Parts>
void decode(std::string_view bytes, Parts&... parts) {
  FieldReader in(std::as_bytes(std::span(bytes)));
  fields(in, parts...);
  in.expect_end();
}

}  // namespace

const Member* Roll::find(std::uint64_t id) const {
  const auto found = std::ranges::find(members, id, &Member::id);
  return found == members.end() ? nullptr : &*found;
}

std::string encode_roll(Roll roll) {
  return encode(roll);
}

Roll decode_roll(std::string_view bytes) {
  Roll roll;
  decode(bytes, roll);
  return roll;
}

std::string encode_knock(Knock knock) {
  auto failure = text_of(knock.failure);
  return encode(knock, failure);
}

Knock decode_knock(std::string_view bytes) {
  Knock knock;
  std::string failure;
  decode(bytes, knock, failure);
  knock.failure = error_in(failure);
  return knock;
}

std::string encode_answer(Answer answer) {
  auto error = text_of(answer.error);
  return encode(answer, error);
}

Answer decode_answer(std::string_view bytes) {
  Answer answer;
  std::string error;
  decode(bytes, answer, error);
  if (answer.verdict > Verdict::failed) {
    throw Error(ErrorCode::CorruptData, "the answer of a member makes no sense");
  }
  answer.error = error_in(error);
  return answer;
}

}  // namespace bimetal::membership
