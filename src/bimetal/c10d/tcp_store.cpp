#include "bimetal/c10d/tcp_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <utility>

#include "bimetal/base/error.h"

namespace bimetal::c10d {
namespace {

using std::chrono::milliseconds;

/// Torch's errors carry a stack trace after the first line; users get that line alone.
std::string first_line(const std::exception& error) {
  const std::string text = error.what();
  return text.substr(0, text.find('\n'));
}

class TcpStore final : public rendezvous::Store {
 public:
  TcpStore(const net::Endpoint& server, const std::string& prefix, std::string local_address,
           Deadline deadline)
      : server_(net::to_string(server)), local_address_(std::move(local_address)) {
    ::c10d::TCPStoreOptions options;
    options.port = server.port;
    options.timeout =
        std::max(milliseconds(1), std::chrono::duration_cast<milliseconds>(deadline.remaining()));
    options.waitWorkers = false;
    guarded([&] {
      store_ = c10::make_intrusive<::c10d::PrefixStore>(
          prefix, c10::make_intrusive<::c10d::TCPStore>(server.host, options));
    });
  }

  void set(std::string_view key, std::string_view value, Deadline) override {
    guarded([&] {
      store_->set(std::string(key), std::vector<std::uint8_t>(value.begin(), value.end()));
    });
  }

  std::string get(std::string_view key, Deadline deadline) override {
    // Asked for in turns: torch's own wait holds the connection, and other threads with it.
    constexpr milliseconds kPause{20};
    for (;;) {
      if (auto value = try_get(key, deadline)) return *value;
      if (deadline.expired()) {
        throw Error(ErrorCode::Timeout,
                    fmt::format("nobody set '{}' in torchrun's store at {}", key, server_));
      }
      std::this_thread::sleep_for(
          std::min<Deadline::Clock::duration>(kPause, deadline.remaining()));
    }
  }

  std::optional<std::string> try_get(std::string_view key, Deadline) override {
    std::optional<std::string> value;
    guarded([&] {
      const std::string name(key);
      if (!store_->check({name})) return;
      const auto bytes = store_->get(name);
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
      throw Error(ErrorCode::System,
                  fmt::format("torchrun's store at {}: {}", server_, first_line(error)));
    }
  }

  std::string server_;
  std::string local_address_;
  c10::intrusive_ptr<::c10d::Store> store_;
};

}  // namespace

std::unique_ptr<rendezvous::Store> connect_tcp_store(const net::Endpoint& server,
                                                     std::string prefix, std::string local_address,
                                                     Deadline deadline) {
  return std::make_unique<TcpStore>(server, prefix, std::move(local_address), deadline);
}

}  // namespace bimetal::c10d
