#include "bimetal/train/background_save.h"

#include <chrono>
#include <utility>

namespace bimetal::train {

void BackgroundSave::end_group() {
  if (group_) end();
}

std::function<void()> BackgroundSave::calling_off() const {
  return [group = group_]() mutable {
    if (group) group.abort("the checkpoint that was being saved is called off");
  };
}

void BackgroundSave::end() {
  if (!writing_.valid()) return;
  calling_off()();
  writing_.wait();
  writing_ = {};
  group_ = {};
}

void BackgroundSave::begin(std::int64_t step, comm::Group group, Write write) {
  step_ = step;
  group_ = std::move(group);
  writing_ = std::async(std::launch::async, std::move(write));
}

std::optional<SavedCheckpoint> BackgroundSave::look() {
  if (!writing_.valid()) return {};
  if (writing_.wait_for(std::chrono::seconds(0)) != std::future_status::ready) return {};
  group_ = {};
  return SavedCheckpoint{step_, writing_.get()};
}

std::optional<SavedCheckpoint> BackgroundSave::finish() {
  if (!writing_.valid()) return {};
  writing_.wait();
  return look();
}

}  // namespace bimetal::train
