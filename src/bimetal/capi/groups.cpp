#include <fmt/format.h>

#include <optional>
#include <string>
#include <vector>

#include "bimetal/capi/boundary.h"
#include "bimetal/comm/fabric.h"
#include "bimetal/comm/meet/meet.h"
#include "bimetal/net/advertise.h"
#include "bimetal/net/endpoint.h"
#include "bimetal/net/token.h"
#ifndef _WIN32
#include "bimetal/launch/local/process.h"
#endif

using namespace bimetal;

namespace {

comm::Group meet_as(const bimetal_meeting& asked) {
  capi::require(asked.store, "the store");
  capi::require(asked.name, "the group's name");
  comm::Meeting meeting{.rank = asked.rank,
                        .size = asked.size,
                        .prefix = comm::prefix_for(asked.name, asked.rank, asked.size)};
  if (asked.members != nullptr) {
    for (const auto member : capi::list(asked.members, asked.size)) {
      meeting.members.push_back(static_cast<std::uint64_t>(member));
    }
    if (asked.world != nullptr) meeting.world = asked.world->group;
  }
  comm::GroupOptions options;
  options.timeout = capi::milliseconds(asked.timeout_ms);
  return comm::meet(*asked.store->store, meeting, options, capi::after(asked.timeout_ms));
}

}  // namespace

extern "C" {

std::int32_t bimetal_group_meet(const bimetal_meeting* meeting, bimetal_group** group) {
  return capi::guarded([&] {
    capi::require(group, "the place for the group");
    *group = new bimetal_group{meet_as(capi::required(meeting, "bimetal_meeting"))};
  });
}

std::int32_t bimetal_group_part(bimetal_group* group, const std::int32_t* ranks, std::int32_t count,
                                bimetal_group** part) {
  return capi::guarded([&] {
    const auto members = capi::list(ranks, count);
    auto made = group->group.subgroup({members.begin(), members.end()});
    *part = made ? new bimetal_group{std::move(made)} : nullptr;
  });
}

std::int32_t bimetal_group_abort(bimetal_group* group, const char* reason) {
  return capi::guarded([&] { group->group.abort(reason); });
}

std::int32_t bimetal_group_close(bimetal_group* group, std::int64_t timeout_ms) {
  return capi::guarded([&] { group->group.close(capi::after(timeout_ms)); });
}

void bimetal_group_free(bimetal_group* group) {
  delete group;
}

std::int32_t bimetal_group_rank(const bimetal_group* group) {
  return group->group.rank();
}

std::int32_t bimetal_group_size(const bimetal_group* group) {
  return group->group.size();
}

const char* bimetal_group_transport(const bimetal_group* group) {
  return comm::to_string(group->group.transport()).data();  // of a literal
}

std::int64_t bimetal_group_bytes_sent(const bimetal_group* group) {
  return static_cast<std::int64_t>(group->group.bytes_sent());
}

std::int32_t bimetal_group_flight_recorder(const bimetal_group* group, const char** json) {
  return capi::guarded([&] { *json = capi::keep_text(group->group.flight_recorder()).c_str(); });
}

// This machine's addresses, and what lets others in.

std::int32_t bimetal_address(const char* server, const char** address) {
  return capi::guarded([&] {
    std::optional<net::Endpoint> endpoint;
    if (server != nullptr) endpoint = net::parse_endpoint(server);
    *address = capi::keep_text(comm::address_for_meeting(endpoint)).c_str();
  });
}

std::int32_t bimetal_token(const char** token) {
  return capi::guarded(
      [&] { *token = capi::keep_text(std::string(net::Token::generate().text())).c_str(); });
}

std::int32_t bimetal_own_addresses(const char** lines) {
  return capi::guarded([&] {
    std::string text;
    for (const auto& own : net::own_addresses()) {
      text += fmt::format("{} {}\n", own.address.to_string(), own.name);
    }
    *lines = capi::keep_text(std::move(text)).c_str();
  });
}

// A rank's relation to the program that started it.

std::int32_t bimetal_end_with_launcher(void) {
  return capi::guarded([] {
#ifndef _WIN32
    launch::end_with_launcher();
#endif
  });
}

}  // extern "C"
