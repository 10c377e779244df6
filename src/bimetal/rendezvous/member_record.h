#pragma once
// What each rank publishes about itself in the store.

#include <cstdint>
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

std::string encode_member(const MemberRecord& member);

/// Throws Error(CorruptData).
MemberRecord decode_member(std::string_view bytes);

/// "mac.local (process 4711)"
std::string describe(const MemberRecord& member);

std::uint64_t own_process_id();

}  // namespace bimetal::rendezvous
