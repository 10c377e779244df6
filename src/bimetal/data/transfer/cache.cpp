#include "bimetal/data/transfer/cache.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <cerrno>
#include <chrono>
#include <compare>
#include <condition_variable>
#include <cstddef>
#include <cstdlib>
#include <fstream>
#include <mutex>
#include <random>
#include <span>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "bimetal/base/deadline.h"
#include "bimetal/base/error.h"
#include "bimetal/base/files.h"
#include "bimetal/base/log.h"
#include "bimetal/data/gzip_file.h"

namespace bimetal::data {

/// The contents of the lock's file: how often the work has been done, and how far its holder is.
struct LockNote {
  std::uint64_t times_done = 0, done = 0, expected = 0;
  auto operator<=>(const LockNote&) const = default;
};

namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds;

constexpr milliseconds kLookAgain{50};
constexpr milliseconds kTellEvery{250};

/// Zeros where it says nothing yet.
LockNote read_note(const fs::path& file) {
  LockNote note;
  std::ifstream(file) >> note.times_done >> note.done >> note.expected;
  return note;
}

/// In place, since the lock is that of this very file; always of the same length. If it cannot be
/// written, only those who wait miss it.
void write_note(const fs::path& file, const LockNote& note) {
  std::ofstream out(file, std::ios::in | std::ios::out);
  out << fmt::format("{:020} {:020} {:020}\n", note.times_done, note.done, note.expected);
}

void make_file(const fs::path& file) {
  std::error_code error;
  fs::create_directories(file.parent_path(), error);
  if (!error && std::ofstream(file, std::ios::app)) return;
  throw Error(ErrorCode::System, fmt::format("cannot write '{}', by which processes take turns; "
                                             "set BIMETAL_CACHE to a folder that can be written to",
                                             file.string()));
}

/// Moves a meter as somebody else's does.
class Follower {
 public:
  Follower(progress::Meter& meter, milliseconds patience)
      : meter_(meter), patience_(patience), end_(Deadline::after(patience)) {}

  void follow(const LockNote& note, const fs::path& file) {
    if (note != seen_) {
      if (note.expected > seen_.expected) meter_.expect(note.expected - seen_.expected);
      if (note.done > seen_.done) meter_.advance(note.done - seen_.done);
      seen_ = note;
      end_ = Deadline::after(patience_);
    }
    meter_.require_going();
    if (!end_.expired()) return;
    throw Error(ErrorCode::Timeout,
                fmt::format("another process is to bring the data into the same cache, and has not "
                            "got on for {} s (it holds '{}'); end it if it hangs",
                            std::chrono::duration<double>(patience_).count(), file.string()));
  }

 private:
  progress::Meter& meter_;
  const milliseconds patience_;
  Deadline end_;
  LockNote seen_;
};

}  // namespace

/// Writes down how far the holder is, while it works.
class CacheLock::Teller {
 public:
  Teller(fs::path file, std::uint64_t times_done, const progress::Meter& meter)
      : file_(std::move(file)), meter_(meter), before_(meter.done(), meter.expected()) {
    note_.times_done = times_done;
    write_note(file_, note_);
    thread_ = std::thread([this] { tell(); });
  }
  ~Teller() {
    {
      const std::scoped_lock lock(mutex_);
      ended_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  Teller(const Teller&) = delete;
  Teller& operator=(const Teller&) = delete;

  void mark_done() {
    const std::scoped_lock lock(mutex_);
    ++note_.times_done;
    write_note(file_, note_);
  }

 private:
  void tell() {
    std::unique_lock lock(mutex_);
    while (!changed_.wait_for(lock, kTellEvery, [this] { return ended_; })) {
      auto now = note_;
      now.done = meter_.done() - before_.first;
      now.expected = meter_.expected() - before_.second;
      if (now != note_) write_note(file_, note_ = now);
    }
  }

  const fs::path file_;
  const progress::Meter& meter_;
  const std::pair<std::uint64_t, std::uint64_t> before_;  ///< of the holder's: not its work here
  std::mutex mutex_;
  std::condition_variable changed_;
  LockNote note_;
  bool ended_ = false;
  std::thread thread_;
};

CacheLock::CacheLock(const Cache& cache, const std::string& name, milliseconds patience,
                     progress::Meter& meter)
    : file_(cache.lock_file(name)) {
  make_file(file_);
  times_done_ = read_note(file_).times_done;
  Follower follower(meter, patience);
  for (;;) {
    claim_ = std::make_unique<PathClaim>(file_);
    if (claim_->outcome() == PathClaim::Outcome::held) break;
    if (claim_->outcome() == PathClaim::Outcome::unsupported) {
      log(LogLevel::info, "no locks in {}: processes may do the same work there", file_.string());
      return;
    }
    if (claim_->outcome() == PathClaim::Outcome::gone) make_file(file_);
    follower.follow(read_note(file_), file_);
    std::this_thread::sleep_for(kLookAgain);
  }
  const auto now = read_note(file_).times_done;
  done_meanwhile_ = now != times_done_;
  teller_ = std::make_unique<Teller>(file_, now, meter);
}

CacheLock::~CacheLock() = default;

void CacheLock::mark_done() {
  if (teller_) teller_->mark_done();
}

namespace {

constexpr std::size_t kFolderDigits = 32;  // 128 bits are enough to tell contents apart

/// A variable's value, if it is set and not empty.
const char* set_variable(const char* name) {
  const char* value = std::getenv(name);
  return value && *value ? value : nullptr;
}

std::string read_id(const fs::path& file) {
  std::string id;
  std::ifstream(file) >> id;
  return id;
}

/// Processes that make one at the same time agree on the one that came first: a link, other than a
/// renaming, replaces nothing. Where the file system has no links, the last one counts.
std::string agree_on_id(const fs::path& file) {
  if (auto id = read_id(file); !id.empty()) return id;
  std::random_device random;
  const auto id = fmt::format("{:08x}{:08x}{:08x}{:08x}", random(), random(), random(), random());
  const auto mine = file.parent_path() / fmt::format(".id-{}", id);
  write_file_atomically(mine, id + "\n");
  std::error_code not_first, ignored;
  fs::create_hard_link(mine, file, not_first);
  if (not_first && read_id(file).empty()) fs::rename(mine, file, ignored);
  fs::remove(mine, ignored);
  return read_id(file);
}

}  // namespace

fs::path cache_root() {
  if (const char* own = set_variable("BIMETAL_CACHE")) return fs::absolute(own);
  if (const char* caches = set_variable("XDG_CACHE_HOME")) return fs::absolute(caches) / "bimetal";
  if (const char* home = set_variable("HOME")) return fs::absolute(home) / ".cache" / "bimetal";
  throw Error(ErrorCode::InvalidArgument,
              "there is no place to keep data: neither BIMETAL_CACHE nor HOME is set; set "
              "BIMETAL_CACHE to a folder with room");
}

Cache::Cache() : root_(cache_root()) {
  std::error_code error;
  for (const char* name : {"data", "urls"}) {
    fs::create_directories(root_ / name, error);
    if (!error) continue;
    throw Error(ErrorCode::System, fmt::format("cannot create '{}', where data is kept: {}; set "
                                               "BIMETAL_CACHE to a folder that can be written to",
                                               (root_ / name).string(), error.message()));
  }
  id_ = agree_on_id(root_ / "id");
}

fs::path Cache::data_folder(const Digest& contents) const {
  return root_ / "data" / hex(contents, kFolderDigits);
}

fs::path Cache::url_folder(const Digest& url) const {
  return root_ / "urls" / hex(url, kFolderDigits);
}

fs::path Cache::lock_file(const std::string& name) const {
  return root_ / "locks" / name;
}

namespace {

constexpr std::size_t kHashedAtATime = std::size_t{1} << 20;

}  // namespace

Content content_of(const std::filesystem::path& file, progress::Meter& meter) {
  GzipFile stream(file);
  Content content;
  Hash hash;
  std::vector<std::byte> piece(kHashedAtATime);
  std::uint64_t position = 0;  // in the file as it lies there
  for (std::size_t got = piece.size(); got == piece.size();) {
    got = stream.read(piece);
    hash.add(std::span(piece).first(got));
    content.size += got;
    const auto before = std::exchange(position, stream.position());
    meter.advance(position - before);
  }
  content.digest = hash.finish();
  return content;
}

namespace {

constexpr const char* kHeading = "bimetal-checksum-1";
// Coarser than the clock of any file system (FAT: 2 s).
constexpr std::chrono::seconds kClockTick{3};

fs::path note_of(const fs::path& file) {
  return cache_root() / "checksums" / hex(digest_of(fs::absolute(file).string()), 32);
}

bool changed_lately(const FileStamp& stamp) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::nanoseconds(stamp.modified_ns) + kClockTick > now;
}

std::optional<Digest> digest_from(const std::string& text) {
  Digest digest;
  if (text.size() != 2 * digest.size()) return std::nullopt;
  for (std::size_t i = 0; i < digest.size(); ++i) {
    const auto pair = text.substr(2 * i, 2);
    if (pair.find_first_not_of("0123456789abcdef") != std::string::npos) return std::nullopt;
    digest[i] = static_cast<std::byte>(std::stoi(pair, nullptr, 16));
  }
  return digest;
}

}  // namespace

std::optional<Content> remembered_content(const fs::path& file, const FileStamp& stamp) try {
  std::ifstream note(note_of(file));
  std::string heading, digest;
  FileStamp then;
  Content content;
  note >> heading >> then.size >> then.modified_ns >> content.size >> digest;
  if (!note || heading != kHeading) return std::nullopt;
  if (then.size != stamp.size || then.modified_ns != stamp.modified_ns) return std::nullopt;
  const auto known = digest_from(digest);
  if (!known) return std::nullopt;
  content.digest = *known;
  return content;
} catch (const Error&) {
  return std::nullopt;  // no cache, nothing remembered
}

void remember_content(const fs::path& file, const FileStamp& stamp, const Content& content,
                      std::uint64_t worth) try {
  if (stamp.size < worth || changed_lately(stamp)) return;
  const auto note = note_of(file);
  std::error_code ignored;  // the next line tells
  fs::create_directories(note.parent_path(), ignored);
  write_file_atomically(note, fmt::format("{} {} {} {} {}\n", kHeading, stamp.size,
                                          stamp.modified_ns, content.size, hex(content.digest)));
} catch (const Error& error) {
  log(LogLevel::info, "a checksum is not kept: {}", error.what());
}

Content known_content(const fs::path& file, progress::Meter& meter) {
  const auto stamp = file_stamp(file);
  meter.expect(stamp.size);
  if (const auto content = remembered_content(file, stamp)) {
    meter.advance(stamp.size);
    return *content;
  }
  const auto content = content_of(file, meter);
  remember_content(file, stamp, content);
  return content;
}

FileStamp file_stamp(const std::filesystem::path& file) {
  struct stat found {};
  if (::stat(file.c_str(), &found) != 0) {
    throw system_error(fmt::format("cannot read '{}'", file.string()), errno);
  }
#ifdef __APPLE__
  const auto& modified = found.st_mtimespec;
#else
  const auto& modified = found.st_mtim;
#endif
  return {.size = static_cast<std::uint64_t>(found.st_size),
          .modified_ns = std::int64_t{modified.tv_sec} * 1'000'000'000 + modified.tv_nsec,
          .device = static_cast<std::uint64_t>(found.st_dev),
          .number = static_cast<std::uint64_t>(found.st_ino)};
}

}  // namespace bimetal::data
