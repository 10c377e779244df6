#include "bimetal/membership/roll.h"

#include <algorithm>
#include <span>

#include "bimetal/base/wire_fields.h"

namespace bimetal::membership {
namespace {

/// As text, which is empty where there is none.
std::string text_of(const std::optional<Error>& error) {
  WireWriter out;
  if (error) write_error(out, *error);
  return as_text(out.bytes());
}

std::optional<Error> error_in(const std::string& text) {
  if (text.empty()) return std::nullopt;
  return read_error(std::as_bytes(std::span(text)));
}

}  // namespace

template <typename Wire>
void fields(Wire& wire, Member& member) {
  wire(member.id, member.host, member.name, member.door.host, member.door.port);
}

template <typename Wire>
void fields(Wire& wire, Roll& roll) {
  wire(roll.epoch, roll.keeper, roll.members);
}

const Member* Roll::find(std::uint64_t id) const {
  const auto found = std::ranges::find(members, id, &Member::id);
  return found == members.end() ? nullptr : &*found;
}

std::string encode_roll(const Roll& roll) {
  return as_text(write_fields(roll));
}

Roll decode_roll(std::string_view bytes) {
  return read_fields<Roll>(std::as_bytes(std::span(bytes)));
}

std::string encode_knock(const Knock& knock) {
  return as_text(
      write_fields(knock.who, knock.lost, knock.release, knock.job, text_of(knock.failure)));
}

Knock decode_knock(std::string_view bytes) {
  Knock knock;
  std::string failure;
  read_fields_into(std::as_bytes(std::span(bytes)), knock.who, knock.lost, knock.release, knock.job,
                   failure);
  knock.failure = error_in(failure);
  return knock;
}

std::string encode_answer(const Answer& answer) {
  return as_text(
      write_fields(answer.verdict, answer.rank, answer.roll, answer.prefix, text_of(answer.error)));
}

Answer decode_answer(std::string_view bytes) {
  Answer answer;
  std::string error;
  read_fields_into(std::as_bytes(std::span(bytes)), answer.verdict, answer.rank, answer.roll,
                   answer.prefix, error);
  if (answer.verdict > Verdict::failed) {
    throw Error(ErrorCode::CorruptData, "the answer of a member makes no sense");
  }
  answer.error = error_in(error);
  return answer;
}

}  // namespace bimetal::membership
