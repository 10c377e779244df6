#include "bimetal/c10d/stores/torch_store.h"

#include <fmt/format.h>

#include <utility>
#include <vector>

#include "bimetal/base/error.h"
#include "bimetal/rendezvous/polled_store.h"

namespace bimetal::c10d {
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

}  // namespace bimetal::c10d
