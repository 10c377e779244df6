#include "bimetal/rendezvous/member_record.h"

#include <fmt/format.h>

#include <span>
#include <string>

#include "bimetal/base/error.h"
#include "bimetal/base/wire.h"

#ifdef _WIN32
#include <process.h>
#else
#include <unistd.h>
#endif

namespace bimetal::rendezvous {

std::string encode_member(const MemberRecord& member) {
  WireWriter out;
  out.u32(static_cast<std::uint32_t>(member.world_size));
  out.string(member.host);
  out.u64(member.process);
  out.u8(member.encrypted ? 1 : 0);
  out.u8(static_cast<std::uint8_t>(member.listening.size()));
  for (const auto& [host, port] : member.listening) {
    out.string(host);
    out.u16(port);
  }
  out.string(member.release);
  return std::string(reinterpret_cast<const char*>(out.bytes().data()), out.bytes().size());
}

MemberRecord decode_member(std::string_view bytes) {
  WireReader in(std::as_bytes(std::span(bytes.data(), bytes.size())));
  MemberRecord member;
  member.world_size = static_cast<int>(in.u32());
  member.host = in.string();
  member.process = in.u64();
  member.encrypted = in.u8() != 0;
  const int addresses = in.u8();
  for (int i = 0; i < addresses; ++i) {
    auto& [host, port] = member.listening.emplace_back();
    host = in.string();
    port = in.u16();
  }
  if (addresses == 0) throw Error(ErrorCode::CorruptData, "a rank's record has no address");
  if (in.remaining() > 0) member.release = in.string();
  in.expect_end();
  return member;
}

std::string encode_members(const std::map<int, MemberRecord>& members) {
  WireWriter out;
  for (const auto& [rank, member] : members) out.string(encode_member(member));
  return std::string(reinterpret_cast<const char*>(out.bytes().data()), out.bytes().size());
}

std::vector<MemberRecord> decode_members(std::string_view bytes, int size) {
  WireReader in(std::as_bytes(std::span(bytes.data(), bytes.size())));
  std::vector<MemberRecord> members;
  for (int rank = 0; rank < size; ++rank) members.push_back(decode_member(in.string()));
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
