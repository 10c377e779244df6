#include <fmt/format.h>

#include <memory>
#include <optional>
#include <string_view>
#include <utility>

#include "bimetal/capi/boundary.h"
#include "bimetal/net/endpoint.h"
#include "bimetal/net/token.h"
#include "bimetal/rendezvous/store.h"

struct bimetal_server {
  bimetal::rendezvous::StoreServer server;
};

struct bimetal_answer {
  std::optional<std::string> value;
};

namespace bimetal::capi {
namespace {

/// A store of the caller's.
class CalledStore final : public rendezvous::PolledStore {
 public:
  explicit CalledStore(const bimetal_store_calls& calls)
      : PolledStore(calls.name), calls_(calls), address_(calls.address) {}

  void set(std::string_view key, std::string_view value, Deadline) override {
    check(calls_.set(calls_.context, std::string(key).c_str(), value.data(),
                     static_cast<std::int64_t>(value.size())),
          "set", key);
  }

  std::optional<std::string> try_get(std::string_view key, Deadline) override {
    bimetal_answer answer;
    check(calls_.try_get(calls_.context, std::string(key).c_str(), &answer), "look for", key);
    return std::move(answer.value);
  }

  std::int64_t add(std::string_view key, std::int64_t delta, Deadline) override {
    std::int64_t value = 0;
    check(calls_.add(calls_.context, std::string(key).c_str(), delta, &value), "add to", key);
    return value;
  }

  std::string local_address() const override { return address_; }

 private:
  void check(std::int32_t result, const char* what, std::string_view key) const {
    if (result == 0) return;
    throw Error(ErrorCode::System, fmt::format("could not {} '{}' in {}", what, key, name()));
  }

  const bimetal_store_calls calls_;
  const std::string address_;
};

}  // namespace
}  // namespace bimetal::capi

using namespace bimetal;

extern "C" {

std::int32_t bimetal_server_new(const char* address, bimetal_server** server) {
  return capi::guarded([&] {
    capi::require(address, "the address");
    capi::require(server, "the place for the server");
    *server = new bimetal_server{
        rendezvous::StoreServer(net::parse_endpoint(address), net::Token::from_environment())};
  });
}

std::int32_t bimetal_server_port(const bimetal_server* server) {
  return server->server.endpoint().port;
}

void bimetal_server_free(bimetal_server* server) {
  delete server;
}

std::int32_t bimetal_store_connect(const char* address, std::int64_t timeout_ms,
                                   bimetal_store** store) {
  return capi::guarded([&] {
    capi::require(address, "the address");
    capi::require(store, "the place for the store");
    *store = new bimetal_store{rendezvous::connect_store(
        net::parse_endpoint(address), net::Token::from_environment(), capi::after(timeout_ms))};
  });
}

void bimetal_answer_set(bimetal_answer* answer, const void* value, std::int64_t bytes) {
  answer->value.emplace(static_cast<const char*>(value), static_cast<std::size_t>(bytes));
}

std::int32_t bimetal_store_of_calls(const bimetal_store_calls* calls, bimetal_store** store) {
  return capi::guarded([&] {
    capi::require(store, "the place for the store");
    const auto& given = capi::required(calls, "bimetal_store_calls");
    capi::require(given.name, "the store's name");
    capi::require(given.address, "the address of this process");
    *store = new bimetal_store{std::make_unique<capi::CalledStore>(given)};
  });
}

void bimetal_store_free(bimetal_store* store) {
  delete store;
}

std::int32_t bimetal_store_set(bimetal_store* store, const char* key, const void* value,
                               std::int64_t bytes, std::int64_t timeout_ms) {
  return capi::guarded([&] {
    store->store->set(key, {static_cast<const char*>(value), static_cast<std::size_t>(bytes)},
                      capi::after(timeout_ms));
  });
}

std::int32_t bimetal_store_get(bimetal_store* store, const char* key, std::int64_t timeout_ms,
                               const void** value, std::int64_t* bytes) {
  return capi::guarded([&] {
    const auto& text = capi::keep_text(store->store->get(key, capi::after(timeout_ms)));
    *value = text.data();
    *bytes = static_cast<std::int64_t>(text.size());
  });
}

std::int32_t bimetal_store_try_get(bimetal_store* store, const char* key, std::int64_t timeout_ms,
                                   const void** value, std::int64_t* bytes) {
  return capi::guarded([&] {
    auto found = store->store->try_get(key, capi::after(timeout_ms));
    const auto& text = capi::keep_text(found ? std::move(*found) : std::string());
    *value = found ? text.data() : nullptr;
    *bytes = static_cast<std::int64_t>(text.size());
  });
}

std::int32_t bimetal_store_add(bimetal_store* store, const char* key, std::int64_t delta,
                               std::int64_t timeout_ms, std::int64_t* value) {
  return capi::guarded([&] { *value = store->store->add(key, delta, capi::after(timeout_ms)); });
}

}  // extern "C"
