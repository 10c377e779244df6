#pragma once
// What is announced of a shared job, beside its port, as text of DNS-SD (RFC 6763, section 6).

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace bimetal::net::discovery {

struct SharedJob {
  std::string name;                    ///< of the job, as people know it
  std::string purpose;                 ///< empty: a job for `bimetal join`; ray: a cluster of Ray
  std::string machine;                 ///< that shares it
  int workers = 0;                     ///< it has there
  std::vector<std::string> addresses;  ///< the one to prefer first
  std::uint16_t port = 0;

  friend bool operator==(const SharedJob&, const SharedJob&) = default;
};

/// Fit for a terminal and a service's name: at most 63 letters of ASCII.
std::string printable(std::string text);

std::string txt_record(const SharedJob& job);
/// All but the port. What makes no sense is left out: numbers, letters that are not fit for a
/// terminal, addresses that are none.
SharedJob parse_txt_record(std::string_view record);

}  // namespace bimetal::net::discovery
