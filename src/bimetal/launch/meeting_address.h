#pragma once
// At which address of the first host the ranks of several hosts meet.

#include <string>
#include <vector>

namespace bimetal::launch {

struct MeetingHost {
  std::string name;     ///< as the user calls it, without "user@"
  std::string address;  ///< at which ssh reached it; may be empty
  bool here = false;    ///< it is this machine
};

/// `hosts` in the order of their ranks. With this machine alone, loopback. The first host's address
/// as ssh reached it, or else its name; if it is this machine, the address by which it reaches the
/// first of the others. Error(System) if no network leads there.
std::string meeting_address(const std::vector<MeetingHost>& hosts);

}  // namespace bimetal::launch
