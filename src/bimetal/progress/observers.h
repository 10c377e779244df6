#pragma once
// Several who watch the same run.

#include <utility>
#include <vector>

#include "bimetal/progress/observer.h"

namespace bimetal::progress {

/// Tells each of them, in their order, whatever it is told. They must outlive it.
class Observers final : public Observer {
 public:
  explicit Observers(std::vector<Observer*> all) : all_(std::move(all)) {}

  void on_phase(const std::string& what) override {
    for (auto* one : all_) one->on_phase(what);
  }
  void on_data(const DataProgress& progress) override {
    for (auto* one : all_) one->on_data(progress);
  }
  void on_workers(const std::vector<WorkerPlace>& places) override {
    for (auto* one : all_) one->on_workers(places);
  }
  void on_step(const Progress& progress) override {
    for (auto* one : all_) one->on_step(progress);
  }
  void on_evaluated(std::int64_t epoch, const Evaluation& evaluation) override {
    for (auto* one : all_) one->on_evaluated(epoch, evaluation);
  }
  void on_checkpoint(const std::string& path, std::int64_t step) override {
    for (auto* one : all_) one->on_checkpoint(path, step);
  }
  void on_rescue(const Rescue& rescue) override {
    for (auto* one : all_) one->on_rescue(rescue);
  }
  void on_notice(const std::string& text) override {
    for (auto* one : all_) one->on_notice(text);
  }

 private:
  std::vector<Observer*> all_;
};

}  // namespace bimetal::progress
