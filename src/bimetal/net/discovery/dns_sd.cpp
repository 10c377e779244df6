#include <arpa/inet.h>
#include <fmt/format.h>
#include <poll.h>
#include <stdlib.h>

#include <algorithm>
#include <atomic>
#include <list>
#include <thread>
#include <tuple>

#include "bimetal/base/deadline.h"
#include "bimetal/base/error.h"
#include "bimetal/net/discovery/shared_job.h"
#include "bimetal/net/dynamic_library.h"

namespace bimetal::net::discovery {
namespace {

#ifdef __APPLE__
constexpr const char* kLibrary = "/usr/lib/libSystem.B.dylib";
constexpr const char* kAdvice = "is mDNSResponder running?";
#else
constexpr const char* kLibrary = "libdns_sd.so.1";
constexpr const char* kAdvice =
    "install Avahi and its libdns_sd (avahi-daemon and libavahi-compat-libdnssd1 on Debian and "
    "Ubuntu, avahi-compat-libdns_sd on Fedora), and start avahi-daemon";
#endif

constexpr const char* kService = "_bimetal._tcp";
constexpr std::chrono::milliseconds kLookEvery{20};
constexpr std::chrono::milliseconds kForFurtherOnes{700};
constexpr std::size_t kMaxJobs = 64;
constexpr int kMostOfOneName = 16;

// The part of dns_sd.h that is used: the same binary interface in Bonjour and Avahi.
using Ref = struct Service*;
using Flags = std::uint32_t;
using Failure = std::int32_t;
constexpr Flags kAdded = 2;
constexpr Failure kNameConflict = -65548;

using Registered = void (*)(Ref, Flags, Failure, const char* name, const char* type,
                            const char* domain, void* context);
using Browsed = void (*)(Ref, Flags, std::uint32_t interface, Failure, const char* name,
                         const char* type, const char* domain, void* context);
using Resolved = void (*)(Ref, Flags, std::uint32_t interface, Failure, const char* full_name,
                          const char* host, std::uint16_t port, std::uint16_t txt_length,
                          const unsigned char* txt, void* context);

class Responder {
 public:
  static const Responder& get() {
    static const Responder responder;
    return responder;
  }

  Failure (*register_service)(Ref*, Flags, std::uint32_t interface, const char* name,
                              const char* type, const char* domain, const char* host,
                              std::uint16_t port, std::uint16_t txt_length, const void* txt,
                              Registered, void* context);
  Failure (*browse)(Ref*, Flags, std::uint32_t interface, const char* type, const char* domain,
                    Browsed, void* context);
  Failure (*resolve)(Ref*, Flags, std::uint32_t interface, const char* name, const char* type,
                     const char* domain, Resolved, void* context);
  int (*descriptor)(Ref);
  Failure (*process)(Ref);
  void (*release)(Ref);

 private:
  Responder() : library_(load()) {
    find("DNSServiceRegister", register_service);
    find("DNSServiceBrowse", browse);
    find("DNSServiceResolve", resolve);
    find("DNSServiceRefSockFD", descriptor);
    find("DNSServiceProcessResult", process);
    find("DNSServiceRefDeallocate", release);
  }

  static DynamicLibrary load() {
    // Avahi's says on standard error that it would rather be used in another way.
    ::setenv("AVAHI_COMPAT_NOWARN", "1", 0);
    try {
      return DynamicLibrary(kLibrary);
    } catch (const Error& error) {
      throw Error(ErrorCode::Unsupported, fmt::format("{}; {}", error.what(), kAdvice));
    }
  }

  template <typename Function>
  void find(const char* name, Function& function) {
    function = reinterpret_cast<Function>(library_.find(name));
    if (function == nullptr) {
      throw Error(ErrorCode::Unsupported, fmt::format("{} has no {}", library_.name(), name));
    }
  }

  DynamicLibrary library_;
};

void require(Failure failure) {
  if (failure == 0) return;
  throw Error(
      ErrorCode::Unsupported,
      fmt::format("the system's mDNS responder does not answer ({}); {}", failure, kAdvice));
}

/// One question to the responder, or one announcement.
class Query {
 public:
  Query() = default;
  ~Query() {
    if (ref_ != nullptr) Responder::get().release(ref_);
  }
  Query(const Query&) = delete;
  Query& operator=(const Query&) = delete;

  Ref* ref() noexcept { return &ref_; }

  /// Its news go to its callback. False where the responder is gone.
  bool process_for(std::chrono::milliseconds patience) {
    const auto& responder = Responder::get();
    pollfd waited{responder.descriptor(ref_), POLLIN, 0};
    if (::poll(&waited, 1, static_cast<int>(patience.count())) <= 0) return true;
    return responder.process(ref_) == 0;
  }

 private:
  Ref ref_ = nullptr;
};

/// One that is announced, and asked for its place.
struct Found {
  Query query;
  SharedJob job;
  bool resolved = false;
};

struct Search {
  std::list<Found> found;

  static void browsed(Ref, Flags flags, std::uint32_t interface, Failure failure, const char* name,
                      const char* type, const char* domain, void* context) {
    auto& found = static_cast<Search*>(context)->found;
    if (failure != 0 || (flags & kAdded) == 0 || found.size() >= kMaxJobs) return;
    auto& entry = found.emplace_back();
    if (Responder::get().resolve(entry.query.ref(), 0, interface, name, type, domain, resolved,
                                 &entry) != 0) {
      found.pop_back();
    }
  }

  static void resolved(Ref, Flags, std::uint32_t, Failure failure, const char*, const char*,
                       std::uint16_t port, std::uint16_t length, const unsigned char* txt,
                       void* context) {
    auto& entry = *static_cast<Found*>(context);
    if (failure != 0) return;
    entry.job = parse_txt_record({reinterpret_cast<const char*>(txt), length});
    entry.job.port = ntohs(port);
    entry.resolved = true;
  }
};

/// A job is there once for each interface.
std::vector<SharedJob> told_apart(const Search& search) {
  std::vector<SharedJob> jobs;
  for (const auto& entry : search.found) {
    if (!entry.resolved || entry.job.addresses.empty() || entry.job.port == 0) continue;
    if (std::ranges::find(jobs, entry.job) == jobs.end()) jobs.push_back(entry.job);
  }
  std::ranges::sort(jobs, {},
                    [](const SharedJob& job) { return std::tie(job.name, job.machine, job.port); });
  return jobs;
}

}  // namespace

struct Announcement::Impl {
  explicit Impl(const SharedJob& job) {
    register_as(fmt::format("{} on {}", job.name, job.machine), job);
    // Another machine may have announced that name meanwhile.
    thread = std::thread([this] {
      while (!stopping && query.process_for(std::chrono::milliseconds(200))) {
      }
    });
  }
  ~Impl() {
    stopping = true;
    thread.join();
  }

  /// Bonjour finds another name where this machine has announced that one already, Avahi does not.
  void register_as(const std::string& name, const SharedJob& job) {
    const auto txt = txt_record(job);
    const Registered ignore = [](Ref, Flags, Failure, const char*, const char*, const char*,
                                 void*) {};
    Failure failure = kNameConflict;
    for (int number = 1; failure == kNameConflict && number <= kMostOfOneName; ++number) {
      const auto full = printable(number == 1 ? name : fmt::format("{}. {}", number, name));
      failure = Responder::get().register_service(
          query.ref(), 0, 0, full.c_str(), kService, nullptr, nullptr, htons(job.port),
          static_cast<std::uint16_t>(txt.size()), txt.data(), ignore, nullptr);
    }
    require(failure);
  }

  Query query;
  std::atomic<bool> stopping = false;
  std::thread thread;
};

Announcement::Announcement(const SharedJob& job) : impl_(std::make_unique<Impl>(job)) {}

Announcement::~Announcement() = default;

std::vector<SharedJob> find_jobs(std::chrono::milliseconds patience) {
  Search search;
  Query browsing;
  require(
      Responder::get().browse(browsing.ref(), 0, 0, kService, nullptr, Search::browsed, &search));
  auto deadline = Deadline::after(patience);
  for (bool any = false; !deadline.expired();) {
    if (!browsing.process_for(kLookEvery)) break;
    for (auto& entry : search.found) {
      if (!entry.resolved) entry.query.process_for(std::chrono::milliseconds(0));
    }
    if (any || told_apart(search).empty()) continue;
    any = true;
    deadline = min(deadline, Deadline::after(kForFurtherOnes));
  }
  return told_apart(search);
}

}  // namespace bimetal::net::discovery
