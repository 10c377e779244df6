#include "bimetal/task/past.h"

#include <fmt/format.h>

#include "bimetal/base/error.h"

namespace bimetal::task {
namespace {

thread_local Past* current = nullptr;

}  // namespace

std::pair<torch::Tensor, torch::Tensor> Past::join(std::int64_t layer, const torch::Tensor& keys,
                                                   const torch::Tensor& values) {
  const auto added = keys.size(2), length = length_ + added;
  if (length > most_) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("{} positions where there is memory for {}", length, most_));
  }
  auto& remembered = layers_[layer];
  if (!remembered.keys.defined()) {
    const auto room = [&](const torch::Tensor& like) {
      return at::empty({like.size(0), like.size(1), most_, like.size(3)}, like.options());
    };
    remembered = {room(keys), room(values)};
  }
  remembered.keys.narrow(2, length_, added).copy_(keys);
  remembered.values.narrow(2, length_, added).copy_(values);
  return {remembered.keys.narrow(2, 0, length), remembered.values.narrow(2, 0, length)};
}

PastScope::PastScope(Past& past) : before_(current) {
  current = &past;
}

PastScope::~PastScope() {
  current = before_;
}

Past* current_past() noexcept {
  return current;
}

std::int64_t first_position() noexcept {
  return current ? current->length() : 0;
}

}  // namespace bimetal::task
