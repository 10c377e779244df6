#pragma once
// Each rank's entry about itself in the store.

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "bimetal/net/endpoint.h"

namespace bimetal::rendezvous {

struct MemberRecord {
  int world_size = 0;
  std::string host;                      ///< name for messages
  std::uint64_t process = 0;             ///< the system's process id
  bool encrypted = false;                ///< whether it wants encrypted connections
  std::vector<net::Endpoint> listening;  ///< the address to prefer first; at least one
  std::string release;                   ///< version of its Bimetal; empty where it does not say
};

std::string encode_member(MemberRecord member);

/// Throws Error(CorruptData).
MemberRecord decode_member(std::string_view bytes);

/// Those of all ranks, in their order.
std::string encode_members(const std::map<int, MemberRecord>& members);

/// Throws Error(CorruptData) also where they are not `size`.
std::vector<MemberRecord> decode_members(std::string_view bytes, int size);

/// "mac.local (process 4711)"
std::string describe(const MemberRecord& member);

std::uint64_t own_process_id();

}  // namespace bimetal::rendezvous
