#pragma once
// The announcement of a shared job, beside its port, as text of DNS-SD (RFC 6763, section 6).
//
// Finds shared jobs on the local network by mDNS and DNS-SD (RFC 6762, 6763), service
// _bimetal._tcp. The system's responder does the work (Bonjour, Avahi), reached by the interface of
// dns_sd.cpp, whose library is loaded at run time. What is found this way is anybody's word: it says
// where to ask, and nothing else is believed.

#include <chrono>
#include <cstdint>
#include <memory>
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
/// All but the port. Invalid fields are left out: wrong numbers, letters that are not fit for a
/// terminal, wrong addresses.
SharedJob parse_txt_record(std::string_view record);

/// Announces a job for as long as it lives. Two of one name are told apart by the responder.
class Announcement {
 public:
  /// Error(Unsupported) with the reason where there is no library, or no responder answers.
  explicit Announcement(const SharedJob& job);
  ~Announcement();
  Announcement(const Announcement&) = delete;
  Announcement& operator=(const Announcement&) = delete;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// The jobs that are announced, sorted by name. Waits for `patience` where there are none, and
/// shortly for further ones once there is one. Error(Unsupported) as Announcement's.
std::vector<SharedJob> find_jobs(std::chrono::milliseconds patience);

}  // namespace bimetal::net::discovery
