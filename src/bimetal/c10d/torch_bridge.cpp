#include "bimetal/c10d/torch_bridge.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <utility>
#include <vector>

#include "bimetal/base/error.h"
#include "bimetal/rendezvous/store.h"

namespace bimetal::c10d {
namespace {

std::string text_of(const Error& error) {
  const std::string rank = error.rank() ? fmt::format(", rank {}", *error.rank()) : "";
  return fmt::format("bimetal: {} [{}{}]", error.what(), to_string(error.code()), rank);
}

}  // namespace

std::unique_ptr<rendezvous::Store> connect_tcp_store(const net::Endpoint& server,
                                                     std::string prefix, std::string local_address,
                                                     Deadline deadline) {
  using std::chrono::milliseconds;
  ::c10d::TCPStoreOptions options;
  options.port = server.port;
  options.timeout =
      std::max(milliseconds(1), std::chrono::duration_cast<milliseconds>(deadline.remaining()));
  options.waitWorkers = false;
  const std::string name = fmt::format("torchrun's store at {}", net::to_string(server));
  try {
    auto store = c10::make_intrusive<::c10d::PrefixStore>(
        std::move(prefix), c10::make_intrusive<::c10d::TCPStore>(server.host, options));
    return adapt_store(std::move(store), name, std::move(local_address));
  } catch (const std::exception& error) {
    throw Error(ErrorCode::System, fmt::format("{}: {}", name, first_line(error)));
  }
}

namespace {

class TorchStore final : public rendezvous::PolledStore {
 public:
  TorchStore(c10::intrusive_ptr<::c10d::Store> store, std::string name, std::string local_address)
      : PolledStore(std::move(name)),
        store_(std::move(store)),
        local_address_(std::move(local_address)) {}

  void set(std::string_view key, std::string_view value, Deadline) override {
    guarded([&] {
      store_->set(std::string(key), std::vector<std::uint8_t>(value.begin(), value.end()));
    });
  }

  std::optional<std::string> try_get(std::string_view key, Deadline) override {
    std::optional<std::string> value;
    guarded([&] {
      const std::string wanted(key);
      if (!store_->check({wanted})) return;
      const auto bytes = store_->get(wanted);
      value.emplace(bytes.begin(), bytes.end());
    });
    return value;
  }

  std::int64_t add(std::string_view key, std::int64_t delta, Deadline) override {
    std::int64_t value = 0;
    guarded([&] { value = store_->add(std::string(key), delta); });
    return value;
  }

  std::string local_address() const override { return local_address_; }

 private:
  template <typename Call>
  void guarded(Call call) {
    try {
      call();
    } catch (const std::exception& error) {
      throw Error(ErrorCode::System, fmt::format("{}: {}", name(), first_line(error)));
    }
  }

  c10::intrusive_ptr<::c10d::Store> store_;
  std::string local_address_;
};

}  // namespace

std::string first_line(const std::exception& error) {
  const std::string text = error.what();
  return text.substr(0, text.find('\n'));
}

std::unique_ptr<rendezvous::Store> adapt_store(c10::intrusive_ptr<::c10d::Store> store,
                                               std::string name, std::string local_address) {
  return std::make_unique<TorchStore>(std::move(store), std::move(name), std::move(local_address));
}

BackendError::BackendError(const bimetal::Error& error)
    : c10::DistBackendError(text_of(error), nullptr), code_(error.code()), rank_(error.rank()) {}

comm::Failure failure_of(const std::exception_ptr& thrown) {
  try {
    std::rethrow_exception(thrown);
  } catch (const Error& error) {
    return {error.code(), error.what(), error.rank()};
  } catch (const std::exception& error) {
    return {ErrorCode::Internal, error.what(), std::nullopt};
  }
}

}  // namespace bimetal::c10d
