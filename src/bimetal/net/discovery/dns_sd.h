#pragma once
// Finds shared jobs on the local network by mDNS and DNS-SD (RFC 6762, 6763), service
// _bimetal._tcp. The system's responder does the work (Bonjour, Avahi), reached by the interface of
// dns_sd.h, whose library is loaded at run time. What is found this way is anybody's word: it says
// where to ask, and nothing else is believed.

#include <chrono>
#include <memory>
#include <vector>

#include "bimetal/net/discovery/shared_job.h"

namespace bimetal::net::discovery {

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
