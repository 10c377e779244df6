#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "bimetal/base/error.h"
#include "bimetal/launch/rank_places.h"
#include "support/errors.h"
#include "support/temporary_folder.h"

namespace bimetal::launch {
namespace {

using ::testing::HasSubstr;

std::string shown(const std::vector<HostSlots>& hosts) {
  std::string text;
  for (const auto& [name, slots] : hosts) text += name + "=" + std::to_string(slots) + " ";
  return text;
}

std::string complaint(const std::string& list) {
  return text_of(ErrorCode::InvalidArgument, [&] { parse_host_list(list); });
}

TEST(HostList, ReadsHostsAndSlots) {
  EXPECT_EQ(shown(parse_host_list("host1:4,host2:2")), "host1=4 host2=2 ");
  EXPECT_EQ(shown(parse_host_list("me@mac.local , 10.0.0.7:3")), "me@mac.local=1 10.0.0.7=3 ");
  EXPECT_EQ(shown(parse_host_list("[fd00::2]:4,me@[fd00::3]")), "fd00::2=4 me@fd00::3=1 ");
}

TEST(HostList, SaysWhatMakesNoSense) {
  EXPECT_THAT(complaint("host1:x"), HasSubstr("\"x\" is not a number of slots"));
  EXPECT_THAT(complaint("host1:0"), HasSubstr("\"0\" is not a number of slots"));
  EXPECT_THAT(complaint("host1,,host2"), HasSubstr("the name is missing"));
  EXPECT_THAT(complaint("fd00::2"), HasSubstr("brackets"));
  EXPECT_THAT(complaint("host1:2,host2,host1:1"), HasSubstr("host1 is listed twice"));
}

TEST(HostList, LetsNoOptionOfSshThrough) {
  EXPECT_THAT(complaint("-oProxyCommand=x:1"), HasSubstr("no name or address"));
  EXPECT_THAT(complaint("a b:1"), HasSubstr("no name or address"));
  EXPECT_THAT(complaint("a;b"), HasSubstr("no name or address"));
}

TEST(HostList, ReadsFilesOfOtherLaunchers) {
  const test::TemporaryFolder folder;
  const auto path = folder.path() / "hosts";
  std::ofstream(path) << "# machines\nhost1 slots=4\n\nhost2:2   # the small one\nhost3\n";
  EXPECT_EQ(shown(read_host_file(path)), "host1=4 host2=2 host3=1 ");
}

TEST(HostList, ReadsAFileThatWasWrittenOnWindows) {
  const test::TemporaryFolder folder;
  const auto path = folder.path() / "hosts";
  std::ofstream(path, std::ios::binary) << "\xef\xbb\xbfhost1 slots=4\r\n# all\r\n\r\nhost2:2\r\n";
  EXPECT_EQ(shown(read_host_file(path)), "host1=4 host2=2 ");
}

TEST(HostList, NamesTheLineOfAFile) {
  const test::TemporaryFolder folder;
  const auto path = folder.path() / "hosts";
  std::ofstream(path) << "host1 slots=4\nhost2 cores=2\n";
  expect_error(ErrorCode::InvalidArgument, {"hosts:2: ", "slots=N"}, [&] { read_host_file(path); });
  std::ofstream(path) << "# nothing\n";
  EXPECT_THROW(read_host_file(path), Error);
  EXPECT_THROW(read_host_file(folder.path() / "none"), Error);
}

TEST(HostList, FillsOneHostAfterTheOther) {
  const auto hosts = parse_host_list("a:2,b:3,c:1");
  const auto all = place_ranks(hosts, std::nullopt);
  ASSERT_EQ(all.size(), 3u);
  EXPECT_EQ(all[1].first_rank, 2);
  EXPECT_EQ(all[2].first_rank, 5);
  const auto some = place_ranks(hosts, 3);
  ASSERT_EQ(some.size(), 2u);
  EXPECT_EQ(some[1].name, "b");
  EXPECT_EQ(some[1].count, 1);
}

TEST(HostList, RefusesMoreRanksThanSlots) {
  expect_error(ErrorCode::InvalidArgument, {"4 ranks", "3 slots"},
               [&] { place_ranks(parse_host_list("a:2,b"), 4); });
}

TEST(HostList, APartOfTheHostsAndOfTheirSlots) {
  const auto hosts = parse_host_list("one:4,two:2,three:8");
  const auto part = [&](std::optional<int> used, std::optional<int> each) {
    return shown(part_of_hosts(hosts, used, each));
  };
  EXPECT_EQ(part({}, {}), "one=4 two=2 three=8 ");
  EXPECT_EQ(part(2, {}), "one=4 two=2 ");
  EXPECT_EQ(part({}, 2), "one=2 two=2 three=2 ");
  EXPECT_EQ(part(1, 3), "one=3 ");
  EXPECT_THROW(part(4, {}), Error);
  EXPECT_THROW(part(2, 3), Error);  // two has 2
}

}  // namespace
}  // namespace bimetal::launch
