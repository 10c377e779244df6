// Machines that let each other in: codes, the messages between host and guest, and a man in the
// middle.

#include "bimetal/net/pairing/pairing.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <fstream>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>

#include "bimetal/base/error.h"
#include "bimetal/net/discovery/shared_job.h"
#include "bimetal/net/pairing/code.h"
#include "support/tcp_proxy.h"
#include "support/temporary_folder.h"

namespace bimetal::net::pairing {
namespace {

using bimetal::testing::TcpProxy;
using std::chrono::seconds;
using Clock = CodeIssuer::Clock;

template <typename Action>
std::string refusal_of(Action action, ErrorCode code = ErrorCode::Unauthorized) {
  try {
    action();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return {};
}

void expect_in(const std::string& part, const std::string& text) {
  EXPECT_NE(text.find(part), std::string::npos) << text;
}

// Codes.

TEST(Code, WordsAreToldApart) {
  const auto words = code_words();
  EXPECT_EQ(words.size(), 256u);
  std::set<std::string_view> heads;
  for (const auto word : words) heads.insert(word.substr(0, 4));
  EXPECT_EQ(heads.size(), words.size());
}

TEST(Code, IsReadAsPeopleTypeIt) {
  const auto code = draw_code();
  EXPECT_EQ(parse_code(code), code);
  EXPECT_EQ(parse_code("  Acorn ACTOR\tamber-apron\n"), "acorn-actor-amber-apron");
  EXPECT_NE(draw_code(), draw_code());
  const auto bad = ErrorCode::InvalidArgument;
  expect_in("3", refusal_of([] { parse_code("acorn actor amber"); }, bad));
  expect_in("'actor'", refusal_of([] { parse_code("acorn acttor amber apron"); }, bad));
  refusal_of([] { parse_code(""); }, bad);
}

TEST(Code, IsGoodForOneMachineTwoMinutesAndFiveTries) {
  const Clock::time_point start{};
  CodeIssuer codes;
  const auto first = codes.renew(start);
  ASSERT_TRUE(first);
  EXPECT_FALSE(codes.renew(start)) << "it is still good";
  const int number = codes.good(start)->number;
  EXPECT_TRUE(codes.good(start + seconds(119)));
  EXPECT_FALSE(codes.good(start + seconds(120)));
  EXPECT_FALSE(codes.use(number, start + seconds(120)));

  EXPECT_TRUE(codes.use(number, start));
  EXPECT_FALSE(codes.use(number, start)) << "one machine";
  const auto second = codes.renew(start);
  ASSERT_TRUE(second);
  EXPECT_NE(*second, *first);
  EXPECT_FALSE(codes.use(number, start)) << "the first one's number";
  EXPECT_EQ(codes.wrong(number), 0);

  for (int left = 4; left >= 0; --left) EXPECT_EQ(codes.wrong(number + 1), left);
  EXPECT_FALSE(codes.good(start));
  EXPECT_FALSE(codes.renew(start + seconds(119))) << "five guesses in two minutes";
  EXPECT_EQ(codes.until_next(start + seconds(20)), seconds(100));
  EXPECT_TRUE(codes.renew(start + seconds(120)));
}

// The public view of a job.

TEST(SharedJob, ComesBackFromItsTextAndNothingStrange) {
  using namespace discovery;
  const SharedJob job{"fashion", "ray", "mac", 2, {"192.168.1.5", "fd00::5"}, 0};
  EXPECT_EQ(parse_txt_record(txt_record(job)), job);
  const std::string strange =
      "\x0bjob=\x1b[2Jabc\x09workers=x\x0c"
      "at=nowhere,1\x05noise\xff"
      "at=";
  EXPECT_EQ(parse_txt_record(strange), SharedJob{});
}

// Machines.

TEST(RememberedMachines, AreKeptForTheirOwnerAloneAndForgotten) {
  const test::TemporaryFolder folder;
  const Machines machines(folder / "bimetal");
  EXPECT_TRUE(machines.names().empty());
  noise::Key key{};
  key[3] = std::byte{7};
  machines.remember("pc", key);
  EXPECT_EQ(machines.find("pc"), key);
  EXPECT_EQ(machines.names(), std::vector<std::string>{"pc"});
  const auto file = folder / "bimetal" / "machines" / "pc";
  using std::filesystem::perms;
  EXPECT_EQ(std::filesystem::status(file).permissions(), perms::owner_read | perms::owner_write);
  std::filesystem::permissions(file, perms::others_read, std::filesystem::perm_options::add);
  expect_in("machines forget pc",
            refusal_of([&] { machines.find("pc"); }, ErrorCode::InvalidArgument));
  EXPECT_TRUE(machines.forget("pc"));
  EXPECT_FALSE(machines.forget("pc"));
  EXPECT_FALSE(machines.find("pc"));
  for (const auto* name : {"", "../pc", ".pc", "a b", "a\x1b[2J"}) {
    EXPECT_FALSE(is_machine_name(name));
    refusal_of([&] { machines.find(name); }, ErrorCode::InvalidArgument);
  }
}

// Host and guest.

constexpr std::string_view kToken = "the token of a job that nobody else knows";

class Pairing : public ::testing::Test {
 protected:
  Pairing() {
    write_name(host_folder(), "mac");
    write_name(guest_folder(), "pc");
    start();
  }

  std::filesystem::path host_folder() const { return folder_ / "mac"; }
  std::filesystem::path guest_folder() const { return folder_ / "pc"; }

  static void write_name(const std::filesystem::path& folder, const std::string& name) {
    std::filesystem::create_directories(folder);
    std::ofstream(folder / "name") << name;
  }

  void start(const std::string& release = "1.0") {
    host_.reset();
    HostOptions options{.listen = {"127.0.0.1", 0},
                        .grant = {Token::from_text(kToken), 4711, true},
                        .machines = Machines(host_folder()),
                        .release = release,
                        .show_code =
                            [this](const std::string& code, const std::string&) {
                              const std::lock_guard lock(mutex_);
                              shown_ = code;
                            },
                        .say =
                            [this](const std::string& note) {
                              const std::lock_guard lock(mutex_);
                              said_ = note;
                              told_.notify_all();
                            }};
    options.now = [this] { return Clock::time_point(seconds(now_s_)); };
    host_.emplace(std::move(options));
    shown_ = host_->first_code();
  }

  std::string shown() {
    const std::lock_guard lock(mutex_);
    return shown_;
  }

  GuestOptions guest(std::optional<std::string> code = {}) {
    return {.addresses = {host_->endpoint()},
            .place = "mac.local",
            .machines = Machines(guest_folder()),
            .release = "1.0",
            .deadline = Deadline::after(seconds(10)),
            .code = std::move(code)};
  }

  /// Another one than the host shows.
  std::string wrong_code() {
    return shown() == "acorn-actor-amber-apron" ? "acid-actor-amber-apron"
                                                : "acorn-actor-amber-apron";
  }

  const test::TemporaryFolder folder_;
  std::atomic<int> now_s_ = 1000;
  std::mutex mutex_;
  std::condition_variable told_;
  std::string shown_, said_;
  std::optional<Host> host_;
};

TEST_F(Pairing, TheCodeLetsInAndBothRememberIt) {
  auto options = guest();
  options.ask_code = [this](const std::string& host, const std::string& complaint) {
    EXPECT_EQ(host, "mac");
    EXPECT_EQ(complaint, "");
    return std::optional(shown());
  };
  const auto first = join(options);
  ASSERT_TRUE(first);
  EXPECT_EQ(first->grant.token.text(), kToken);
  EXPECT_EQ(first->store, (Endpoint{"127.0.0.1", 4711}));
  EXPECT_TRUE(first->grant.encrypted);
  EXPECT_FALSE(first->remembered);
  EXPECT_EQ(Machines(host_folder()).find("pc"), Machines(guest_folder()).find("mac"));

  start();  // the next job
  const auto again = join(guest());
  ASSERT_TRUE(again);
  EXPECT_TRUE(again->remembered);
  EXPECT_EQ(again->grant.token.text(), kToken);
}

TEST_F(Pairing, AWrongCodeMayBeTypedAgain) {
  auto options = guest();
  int asked = 0;
  options.ask_code = [&](const std::string&, const std::string& complaint) {
    if (asked++ == 0) return std::optional(wrong_code());
    expect_in("4 tries are left", complaint);
    return std::optional(shown());
  };
  EXPECT_TRUE(join(options));
  EXPECT_EQ(asked, 2);
}

TEST_F(Pairing, AfterFiveWrongTriesTheRightCodeIsOfNoUse) {
  const auto code = shown();
  for (int i = 0; i < CodeIssuer::kTries; ++i) {
    const auto text = refusal_of([&] { join(guest(wrong_code())); });
    expect_in(i < 4 ? "tries are left" : "nobody any more", text);
  }
  expect_in("120 s", refusal_of([&] { join(guest(code)); }));
  expect_in("120 s", refusal_of([&] { join(guest()); }));
  EXPECT_EQ(shown(), code) << "no new one yet";
  now_s_ += 120;
  refusal_of([&] { join(guest()); });  // which asks for one
  EXPECT_NE(shown(), code);
  EXPECT_TRUE(join(guest(shown())));
}

TEST_F(Pairing, AnExpiredCodeIsRefusedAndAnotherShown) {
  const auto code = shown();
  now_s_ += 121;
  expect_in("two minutes", refusal_of([&] { join(guest(code)); }));
  EXPECT_NE(shown(), code);
  EXPECT_TRUE(join(guest(shown())));
}

TEST_F(Pairing, ACodeIsForOneMachine) {
  const auto code = shown();
  EXPECT_TRUE(join(guest(code)));
  auto other = guest(code);
  write_name(folder_ / "other", "other");
  other.machines = Machines(folder_ / "other");
  refusal_of([&] { join(other); });
  other.code = shown();
  EXPECT_TRUE(join(other));
}

TEST_F(Pairing, AChangedKeyIsRefusedOnBothSides) {
  EXPECT_TRUE(join(guest(shown())));
  // The guest has another key than the host remembers.
  Machines(guest_folder()).remember("mac", noise::Key{});
  expect_in("machines forget pc", refusal_of([&] { join(guest()); }));
  // It was installed anew, and shows the code.
  Machines(guest_folder()).forget("mac");
  refusal_of([&] { join(guest()); });
  expect_in("machines forget pc", refusal_of([&] { join(guest(shown())); }));
  // The host has forgotten it.
  Machines(guest_folder()).remember("mac", noise::Key{});
  Machines(host_folder()).forget("pc");
  expect_in("machines forget mac", refusal_of([&] { join(guest()); }));
  Machines(guest_folder()).forget("mac");
  refusal_of([&] { join(guest()); });
  EXPECT_TRUE(join(guest(shown())));
}

TEST_F(Pairing, AKeyThatOthersCanReadIsNotUsed) {
  EXPECT_TRUE(join(guest(shown())));
  std::filesystem::permissions(host_folder() / "machines" / "pc",
                               std::filesystem::perms::others_read,
                               std::filesystem::perm_options::add);
  refusal_of([&] { join(guest()); }, ErrorCode::PeerLost);
  std::unique_lock lock(mutex_);
  told_.wait_for(lock, seconds(10), [this] { return said_.find("forget") != std::string::npos; });
  expect_in("machines forget pc", said_);
}

TEST_F(Pairing, AnotherReleaseIsToldBeforeAnyCode) {
  start("2.0");
  auto options = guest();
  options.ask_code = [](const std::string&, const std::string&) {
    ADD_FAILURE() << "asked";
    return std::optional<std::string>();
  };
  const auto text = refusal_of([&] { join(options); }, ErrorCode::ProtocolMismatch);
  expect_in("2.0", text);
  expect_in("1.0", text);
}

TEST_F(Pairing, NobodyThereIsToldInTime) {
  auto options = guest();
  options.addresses = {{"127.0.0.1", 1}};
  options.deadline = Deadline::after(std::chrono::milliseconds(300));
  expect_in("mac.local", refusal_of([&] { join(options); }, ErrorCode::Timeout));
}

// A man in the middle.

TEST_F(Pairing, WhoListensSeesNeitherTokenNorCode) {
  TcpProxy relay(host_->endpoint());
  std::string heard;
  std::mutex mutex;
  relay.filter([&](TcpProxy::Direction, std::uint64_t, std::span<char> bytes) {
    const std::lock_guard lock(mutex);
    heard.append(bytes.data(), bytes.size());
  });
  auto options = guest(shown());
  options.addresses = {relay.endpoint()};
  EXPECT_TRUE(join(options));
  EXPECT_TRUE(join(options)) << "by the key";
  const std::lock_guard lock(mutex);
  EXPECT_GT(heard.size(), 300u);
  EXPECT_EQ(heard.find(kToken.substr(0, 12)), std::string::npos);
  EXPECT_EQ(heard.find(shown().substr(0, 5)), std::string::npos);
}

/// Changes by either side, with a code and with a key. Lengths are left out: there the other side
/// would only wait.
TEST_F(Pairing, WhoChangesAByteIsNoticed) {
  TcpProxy relay(host_->endpoint());
  for (const bool by_key : {false, true}) {
    for (const auto changed : {TcpProxy::Direction::to_server, TcpProxy::Direction::to_client}) {
      const std::uint64_t length = by_key ? 120 : 230;
      for (std::uint64_t at = 3; at < length; at += 7) {
        std::uint64_t passed = 0;
        relay.filter(
            [&](TcpProxy::Direction direction, std::uint64_t offset, std::span<char> bytes) {
              if (direction != changed) return;
              passed = offset + bytes.size();
              if (offset <= at && at < passed) bytes[at - offset] ^= 1;
            });
        Machines(host_folder()).forget("pc");
        Machines(guest_folder()).forget("mac");
        if (by_key) {
          Machines(host_folder()).remember("pc", noise::Key{});
          Machines(guest_folder()).remember("mac", noise::Key{});
        } else {
          now_s_ += 121;
          refusal_of([&] { join(guest()); });  // a new code
        }
        auto options = guest(by_key ? std::optional<std::string>() : shown());
        options.addresses = {relay.endpoint()};
        bool let_in = false;
        try {
          let_in = join(options).has_value();
        } catch (const Error&) {
        }
        relay.filter({});
        EXPECT_TRUE(!let_in || passed <= at) << at << (by_key ? " key" : " code");
      }
    }
  }
}

/// Answers as the host to the guest, and asks as the guest of the host: one guess for each try.
TEST_F(Pairing, AnImpostorHasOneGuess) {
  write_name(folder_ / "impostor", "mac");
  Host impostor({.listen = {"127.0.0.1", 0},
                 .grant = {Token::from_text("another token, of the impostor"), 4711, true},
                 .machines = Machines(folder_ / "impostor"),
                 .release = "1.0",
                 .show_code = [](const std::string&, const std::string&) {},
                 .say = [](const std::string&) {}});
  auto deceived = guest(shown());
  deceived.addresses = {impostor.endpoint()};
  if (impostor.first_code() != shown()) {
    expect_in("somebody is in between", refusal_of([&] { join(deceived); }));
  }
  EXPECT_FALSE(Machines(guest_folder()).find("mac"));
  auto guess = guest(impostor.first_code());
  expect_in("4 tries are left", refusal_of([&] { join(guess); }));
  EXPECT_TRUE(join(guest(shown())));
  // Once both remember each other, an impostor is named as one.
  expect_in("machines forget mac", refusal_of([&] { join(deceived); }));
}

TEST_F(Pairing, ManyTriesAtOnceAreFiveAllTheSame) {
  std::atomic<int> wrong = 0, closed = 0;
  std::vector<std::thread> strangers;
  const auto code = wrong_code();
  for (int i = 0; i < 12; ++i) {
    strangers.emplace_back([&, options = guest(code)] {
      try {
        join(options);
      } catch (const Error& error) {
        const std::string text = error.what();
        ++(text.find("that is not the code") != std::string::npos ? wrong : closed);
      }
    });
  }
  for (auto& stranger : strangers) stranger.join();
  EXPECT_EQ(wrong, CodeIssuer::kTries);
  EXPECT_EQ(closed, 12 - CodeIssuer::kTries);
}

}  // namespace
}  // namespace bimetal::net::pairing
