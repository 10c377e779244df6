// The members of a job, over losses and newcomers: membership/membership.h.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdlib>
#include <exception>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "bimetal/base/json.h"
#include "bimetal/capi/boundary.h"
#include "bimetal/membership/door.h"
#include "bimetal/membership/membership.h"
#include "bimetal/net/endpoint.h"
#include "bimetal/net/silence.h"
#include "bimetal/net/token.h"

struct bimetal_members {
  bimetal::membership::Membership members;
  int rank = 0;
  std::vector<bimetal::membership::Member> lost = {}, left = {}, came = {};
};

using namespace bimetal;

namespace {

/// No Error, of which membership makes its own.
struct WaitsNoLonger : std::exception {};

std::string text_of(const char* text) {
  return text == nullptr ? "" : text;
}

/// The error that a caller reports, by the status that stands for its code.
Error error_of(std::int32_t status, const char* text, std::int32_t rank = -1) {
  return {capi::code_of(status).value_or(ErrorCode::Internal), text_of(text),
          rank < 0 ? std::nullopt : std::optional<int>(rank)};
}

membership::Options options_of(const bimetal_member_options& asked) {
  capi::require(asked.door, "the member's door");
  const auto door = net::parse_endpoint(asked.door);
  const auto timeout = capi::milliseconds(asked.timeout_ms);
  membership::Options options;
  options.listen = door.host;
  options.port = door.port;
  options.token = net::Token::from_environment();
  options.host = text_of(asked.host);
  options.worker = text_of(asked.worker);
  options.job = text_of(asked.job);
  options.keeper = text_of(asked.keeper);
  options.least = asked.least;
  options.most = asked.most;
  options.patience = capi::milliseconds(asked.patience_ms);
  options.timeout = timeout;
  options.silence =
      net::peer_timeout_for(net::peer_timeout_from_environment(), net::is_loopback(door.host));
  options.group.timeout = timeout;
  if (asked.wait != nullptr) {
    options.wait = [wait = asked.wait, context = asked.context] {
      if (wait(context) != 0) throw WaitsNoLonger();
    };
  }
  return options;
}

/// Calls `call`, which may wait for others.
template <typename Call>
std::int32_t waiting(Call&& call) {
  return capi::guarded([&] {
    try {
      call();
    } catch (const WaitsNoLonger&) {
      throw Error(ErrorCode::Aborted, "the caller waits no longer");
    }
  });
}

bimetal_group* entered(bimetal_members& members, comm::Group group) {
  members.rank = group.rank();
  return new bimetal_group{std::move(group)};
}

std::string json_of(std::span<const membership::Member> members) {
  std::vector<std::string> all;
  for (const auto& one : members) {
    all.push_back(fmt::format(R"({{"id":"{:x}","name":{},"host":{},"door":{}}})", one.id,
                              json_string(one.name), json_string(one.host),
                              json_string(net::to_string(one.door))));
  }
  return fmt::format("[{}]", fmt::join(all, ","));
}

}  // namespace

extern "C" {

std::int32_t bimetal_door(const char* towards, const char** door) {
  return capi::guarded([&] {
    std::optional<net::Endpoint> somebody;
    if (towards != nullptr) somebody = net::parse_endpoint(towards);
    const char* local = std::getenv("LOCAL_RANK");
    const bool comes_later = !text_of(std::getenv("BIMETAL_DOOR")).empty();
    *door = capi::keep_text(net::to_string(membership::door_of_process(
                                somebody, local == nullptr ? 0 : std::atoi(local), comes_later)))
                .c_str();
  });
}

std::int32_t bimetal_members_new(const bimetal_member_options* options, bimetal_members** members) {
  return capi::guarded([&] {
    capi::require(members, "the place for the members");
    *members = new bimetal_members{
        membership::Membership(options_of(capi::required(options, "bimetal_member_options")))};
  });
}

void bimetal_members_free(bimetal_members* members) {
  delete members;
}

std::int32_t bimetal_members_found(bimetal_members* members, bimetal_group* first) {
  return capi::guarded([&] {
    members->members.found(first->group);
    members->rank = first->group.rank();
  });
}

std::int32_t bimetal_members_join(bimetal_members* members, const char* doors,
                                  bimetal_group** group) {
  return waiting([&] {
    capi::require(doors, "the door to knock at");
    *group = entered(*members, members->members.join(membership::doors_in(doors)));
  });
}

std::int32_t bimetal_members_next(bimetal_members* members, std::int32_t status, const char* text,
                                  std::int32_t rank, const std::int32_t* leaving,
                                  std::int32_t count, bimetal_group** group) {
  return waiting([&] {
    std::optional<Error> loss;
    if (status != BIMETAL_OK) loss = error_of(status, text, rank);
    auto change = members->members.next(loss, capi::list(leaving, count));
    members->lost = std::move(change.lost);
    members->left = std::move(change.left);
    members->came = std::move(change.came);
    *group = entered(*members, std::move(change.group));
  });
}

std::int32_t bimetal_members_end(bimetal_members* members, std::int32_t status, const char* text) {
  return capi::guarded([&] {
    if (status == BIMETAL_OK) return members->members.finish();
    members->members.fail(error_of(status, text));
  });
}

std::int32_t bimetal_members_somebody_waits(bimetal_members* members, std::int32_t* waits) {
  return capi::guarded([&] { *waits = members->members.somebody_waits() ? 1 : 0; });
}

std::int32_t bimetal_members_told(const bimetal_members* members, const char** json) {
  return capi::guarded([&] {
    const auto& roll = members->members.roll();
    *json = capi::keep_text(fmt::format(R"({{"epoch":{},"rank":{},"door":{},"members":{},)"
                                        R"("lost":{},"left":{},"came":{}}})",
                                        roll.epoch, members->rank,
                                        json_string(net::to_string(members->members.door())),
                                        json_of(roll.members), json_of(members->lost),
                                        json_of(members->left), json_of(members->came)))
                .c_str();
  });
}

}  // extern "C"
