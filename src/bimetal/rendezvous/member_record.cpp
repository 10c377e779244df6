#include "bimetal/rendezvous/member_record.h"

#include <fmt/format.h>

#include <span>
#include <string>

#include "bimetal/base/wire_fields.h"

#ifdef _WIN32
#include <process.h>
#else
#include <unistd.h>
#endif

namespace bimetal::rendezvous {

namespace {

template <typename Wire>
void fields(Wire& wire, MemberRecord& member) {
  wire(member.world_size, member.host, member.process, member.encrypted);
  wire.each(member.listening, [&](net::Endpoint& one) { wire(one.host, one.port); });
  wire(member.release);
}

}  // namespace

std::string encode_member(MemberRecord member) {
  FieldWriter out;
  fields(out, member);
  return as_text(std::move(out).take());
}

MemberRecord decode_member(std::string_view bytes) {
  FieldReader in(std::as_bytes(std::span(bytes)));
  MemberRecord member;
  fields(in, member);
  in.expect_end();
  if (member.listening.empty()) {
    throw Error(ErrorCode::CorruptData, "a rank's record has no address");
  }
  return member;
}

std::string encode_members(const std::map<int, MemberRecord>& members) {
  FieldWriter out;
  for (const auto& [rank, member] : members) out(encode_member(member));
  return as_text(std::move(out).take());
}

std::vector<MemberRecord> decode_members(std::string_view bytes, int size) {
  FieldReader in(std::as_bytes(std::span(bytes)));
  std::vector<MemberRecord> members;
  for (int rank = 0; rank < size; ++rank) {
    std::string member;
    in(member);
    members.push_back(decode_member(member));
  }
  in.expect_end();
  return members;
}

std::string describe(const MemberRecord& member) {
  return fmt::format("{} (process {})", member.host, member.process);
}

std::uint64_t own_process_id() {
#ifdef _WIN32
  return static_cast<std::uint64_t>(_getpid());
#else
  return static_cast<std::uint64_t>(getpid());
#endif
}

}  // namespace bimetal::rendezvous
