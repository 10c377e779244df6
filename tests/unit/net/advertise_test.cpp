#include "bimetal/net/advertise.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "bimetal/base/error.h"
#include "bimetal/net/endpoint.h"
#include "support/errors.h"

namespace bimetal::net {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

InterfaceAddress at(const std::string& name, const std::string& address) {
  return {name, asio::ip::make_address(address)};
}

const std::vector<InterfaceAddress> kWorkstation = {at("lo", "127.0.0.1"),
                                                    at("lo", "::1"),
                                                    at("eth0", "10.0.0.2"),
                                                    at("wlan0", "192.168.1.7"),
                                                    at("eth0", "fd00::2"),
                                                    at("eth0", "fe80::2"),
                                                    at("docker0", "172.17.0.1"),
                                                    at("br-12ab34cd", "172.18.0.1"),
                                                    at("veth77aa", "172.19.0.1"),
                                                    at("virbr0", "192.168.122.1"),
                                                    at("cni0", "10.244.0.1"),
                                                    at("vmnet8", "172.16.5.1"),
                                                    at("vEthernet (WSL)", "172.29.0.1")};

std::string message_of(std::string_view selection, std::string_view towards_store) {
  return text_of(ErrorCode::InvalidArgument,
                 [&] { addresses_to_advertise(selection, towards_store, kWorkstation); });
}

TEST(Advertise, ThePathToTheStoreComesFirstAndContainersNever) {
  EXPECT_THAT(addresses_to_advertise("", "192.168.1.7", kWorkstation),
              ElementsAre("192.168.1.7", "10.0.0.2", "fd00::2"));
  EXPECT_THAT(addresses_to_advertise("", "fd00::2", kWorkstation),
              ElementsAre("fd00::2", "10.0.0.2", "192.168.1.7"));
}

TEST(Advertise, AJobThatMeetsOnLoopbackStaysThere) {
  EXPECT_THAT(addresses_to_advertise("", "127.0.0.1", kWorkstation), ElementsAre("127.0.0.1"));
  EXPECT_THAT(addresses_to_advertise("", "::1", kWorkstation), ElementsAre("::1"));
  EXPECT_THAT(addresses_to_advertise("", "", kWorkstation), ElementsAre("127.0.0.1"));
  EXPECT_THAT(addresses_to_advertise("eth0", "127.0.0.1", kWorkstation), ElementsAre("127.0.0.1"));
}

TEST(Advertise, AnAddressThatTheStoreSeesButNoInterfaceHasIsKept) {
  EXPECT_THAT(addresses_to_advertise("", "203.0.113.9", {}), ElementsAre("203.0.113.9"));
}

TEST(Advertise, MakeshiftAddressesComeLast) {
  const std::vector<InterfaceAddress> two_macs = {at("bridge0", "169.254.11.1"),
                                                  at("en0", "192.168.1.7")};
  EXPECT_THAT(addresses_to_advertise("", "192.168.1.7", two_macs),
              ElementsAre("192.168.1.7", "169.254.11.1"));
}

TEST(Advertise, SelectionByNameAddressAndPrefixInItsOwnOrder) {
  const auto select = [](std::string_view what) {
    return addresses_to_advertise(what, "192.168.1.7", kWorkstation);
  };
  EXPECT_THAT(select("eth0"), ElementsAre("10.0.0.2", "fd00::2"));
  EXPECT_THAT(select(" wlan0, eth0 "), ElementsAre("192.168.1.7", "10.0.0.2", "fd00::2"));
  EXPECT_THAT(select("10.0.0.2"), ElementsAre("10.0.0.2"));
  EXPECT_THAT(select("fd00::/8,192.168.1.0/29"), ElementsAre("fd00::2", "192.168.1.7"));
  EXPECT_THAT(select("10.0.0.0/31,10.0.0.2/31"), ElementsAre("10.0.0.2"));
  EXPECT_THAT(select("docker0"), ElementsAre("172.17.0.1"));
  EXPECT_THAT(select(","), SizeIs(3)) << "as good as none";
}

TEST(Advertise, SelectionThatFitsNothingNamesWhatThereIs) {
  const std::string message = message_of("eth7", "10.0.0.2");
  EXPECT_THAT(message, HasSubstr("BIMETAL_INTERFACE=eth7"));
  EXPECT_THAT(message, HasSubstr("wlan0 (192.168.1.7)"));
  EXPECT_THAT(message_of("lo", "10.0.0.2"), HasSubstr("BIMETAL_INTERFACE=lo")) << "never loopback";
  EXPECT_THAT(message_of("10.0.0.2/31x", "10.0.0.2"), HasSubstr("no prefix"));
  EXPECT_THAT(message_of("10.0.0.2/33", "10.0.0.2"), HasSubstr("no prefix"));
}

TEST(Advertise, ALinkLocalPathToTheStoreIsNotPublished) {
  EXPECT_THAT(addresses_to_advertise("", "fe80::2%eth0", kWorkstation),
              ElementsAre("10.0.0.2", "192.168.1.7", "fd00::2"));
  const std::vector<InterfaceAddress> bare = {at("eth0", "fe80::2")};
  EXPECT_THROW(addresses_to_advertise("", "fe80::2%eth0", bare), Error);
}

TEST(Advertise, BoundedHoweverManyAddressesThereAre) {
  std::vector<InterfaceAddress> many;
  for (int i = 1; i < 100; ++i) many.push_back(at("eth0", "10.0.0." + std::to_string(i)));
  EXPECT_THAT(addresses_to_advertise("", "10.0.0.1", many), SizeIs(kMaxAdvertised));
}

TEST(Interfaces, TheSystemListsItsLoopback) {
  const auto own = own_addresses();
  EXPECT_TRUE(std::any_of(own.begin(), own.end(), [](const InterfaceAddress& entry) {
    return is_loopback(entry.address.to_string()) && !entry.name.empty();
  }));
}

TEST(Endpoint, ReadsNamesAddressesAndBrackets) {
  EXPECT_EQ(parse_endpoint("10.0.0.2:29500"), (Endpoint{"10.0.0.2", 29500}));
  EXPECT_EQ(parse_endpoint("mac.local:1"), (Endpoint{"mac.local", 1}));
  EXPECT_EQ(parse_endpoint("[fe80::1%en0]:65535"), (Endpoint{"fe80::1%en0", 65535}));
  EXPECT_EQ(parse_endpoint("localhost:0"), (Endpoint{"localhost", 0}));
}

TEST(Endpoint, WritesWhatItReads) {
  for (const char* text : {"10.0.0.2:29500", "mac.local:1", "[::1]:65535"}) {
    EXPECT_EQ(to_string(parse_endpoint(text)), text);
  }
}

TEST(Endpoint, SaysWhatIsWrong) {
  const std::pair<const char*, const char*> cases[] = {
      {"", "port is missing"},           {"host", "port is missing"},
      {"host:", "port is missing"},      {":80", "host is missing"},
      {"host:http", "must be a number"}, {"host:65536", "0 to 65535"},
      {"host:-1", "must be a number"},   {"host:80 ", "must be a number"},
      {"::1:80", "need brackets"},       {"[::1", "not closed"},
      {"[::1]80", "must follow"},        {"my host:80", "no host name has"},
  };
  for (const auto& [text, message] : cases) {
    expect_error(ErrorCode::InvalidArgument, {message}, [&text = text] { parse_endpoint(text); });
  }
}

TEST(Endpoint, KnowsLoopback) {
  for (const char* host : {"localhost", "127.0.0.1", "127.8.9.1", "::1", "::ffff:127.0.0.1"}) {
    EXPECT_TRUE(is_loopback(host)) << host;
  }
  for (const char* host : {"0.0.0.0", "::", "10.0.0.2", "localhost.example.org", "128.0.0.1", ""}) {
    EXPECT_FALSE(is_loopback(host)) << host;
  }
}

}  // namespace
}  // namespace bimetal::net
