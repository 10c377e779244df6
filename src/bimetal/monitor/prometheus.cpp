#include <fmt/format.h>

#include <cmath>
#include <optional>
#include <string_view>

#include "bimetal/base/release.h"
#include "bimetal/monitor/status.h"
#include "bimetal/progress/text.h"

namespace bimetal::monitor {
namespace {

enum class Kind { gauge, counter };

/// Go's way to write a float, which the format asks for.
std::string number(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  return fmt::format("{}", value);
}

/// A label's value, without its quotes. Bytes beyond ASCII could make the whole text invalid UTF-8.
std::string escaped(std::string_view value) {
  std::string text;
  for (const char c : value) {
    if (c == '\\' || c == '"') {
      text += '\\';
      text += c;
    } else if (c == '\n') {
      text += "\\n";
    } else {
      text += static_cast<unsigned char>(c) < 0x80 ? c : '?';
    }
  }
  return text;
}

std::string labels_of(const WorkerStatus& worker) {
  const auto stage =
      worker.stage ? fmt::format(",stage=\"{}\"", escaped(*worker.stage)) : std::string();
  return fmt::format("{{rank=\"{}\",host=\"{}\",device=\"{}\"{}}}", worker.rank,
                     escaped(worker.host), escaped(worker.device), stage);
}

class Text {
 public:
  explicit Text(const Status& status) : status_(status) {}

  /// One number of the whole job.
  template <typename Value>
  void job(std::string_view name, Kind kind, std::string_view help, const Value& value,
           const std::string& labels = "") {
    const std::optional<Value> known = value;
    add(name, kind, help, labels, known);
  }
  template <typename Value>
  void job(std::string_view name, Kind kind, std::string_view help,
           const std::optional<Value>& value) {
    add(name, kind, help, "", value);
  }

  /// One number of each worker, by a pointer to its member.
  template <typename Member>
  void workers(std::string_view name, Kind kind, std::string_view help,
               Member WorkerStatus::*member) {
    named_ = false;
    for (const auto& worker : status_.workers) {
      line(name, kind, help, labels_of(worker), worker.*member);
    }
  }

  std::string take() { return std::move(text_); }

 private:
  template <typename Value>
  void add(std::string_view name, Kind kind, std::string_view help, const std::string& labels,
           const std::optional<Value>& value) {
    named_ = false;
    line(name, kind, help, labels, value);
  }

  template <typename Value>
  void line(std::string_view name, Kind kind, std::string_view help, const std::string& labels,
            const std::optional<Value>& value) {
    if (value) line(name, kind, help, labels, *value);
  }
  template <typename Value>
  void line(std::string_view name, Kind kind, std::string_view help, const std::string& labels,
            const Value& value) {
    if (!named_) {
      text_ += fmt::format("# HELP {0} {1}\n# TYPE {0} {2}\n", name, help,
                           kind == Kind::counter ? "counter" : "gauge");
      named_ = true;
    }
    text_ += fmt::format("{}{} {}\n", name, labels, number(static_cast<double>(value)));
  }

  const Status& status_;
  std::string text_;
  bool named_ = false;
};

void add_evaluation(Text& text, std::string_view data, const progress::Metrics& metrics,
                    std::optional<double> loss) {
  const auto first_letter_large = [](std::string label) {
    label.front() = static_cast<char>(label.front() - 'a' + 'A');
    return label;
  };
  for (const auto& metric : metrics) {
    text.job(fmt::format("bimetal_{}_{}{}", data, metric.name,
                         progress::is_ratio(metric.name) ? "_ratio" : ""),
             Kind::gauge,
             first_letter_large(progress::label_of(metric, data)) + " at the last evaluation.",
             metric.value);
  }
  text.job(fmt::format("bimetal_{}_loss", data), Kind::gauge,
           first_letter_large(fmt::format("{} loss at the last evaluation.", data)), loss);
}

void add_job(Text& text, const Status& status) {
  using enum Kind;
  text.job("bimetal_build_info", gauge, "The version that the job runs.", 1,
           fmt::format("{{version=\"{}\"}}", escaped(release())));
  text.job("bimetal_start_time_seconds", gauge, "When rank 0 started, in Unix time.",
           status.started_at);
  if (status.step == 0) return;
  text.job("bimetal_epoch", gauge, "The epoch in training, counted from 1.", status.epoch);
  text.job("bimetal_planned_epochs", gauge, "Epochs that the job is to train.", status.epochs);
  text.job("bimetal_steps_total", counter, "Optimizer steps done, those before a resume included.",
           status.step);
  text.job("bimetal_planned_steps", gauge, "Optimizer steps planned in all.", status.steps);
  text.job("bimetal_training_seconds_total", counter, "Time of the training steps alone.",
           status.elapsed_s);
  text.job("bimetal_workers_lost_total", counter, "Workers that were lost.", status.workers_lost);
  text.job("bimetal_workers_left_total", counter, "Workers that have left in good order.",
           status.workers_left);
  text.job("bimetal_workers_joined_total", counter, "Workers that came after the start.",
           status.workers_joined);
  text.job("bimetal_change_seconds_total", counter,
           "Time between steps that losses and newcomers have cost.", status.change_s);
  text.job("bimetal_remaining_seconds", gauge, "Predicted time to the end.", status.seconds_left);
  text.job("bimetal_loss", gauge, "Mean loss over the last step's global batch.", status.loss);
  text.job("bimetal_samples_per_second", gauge,
           "Samples trained on per second, over the last seconds.", status.samples_per_s);
  text.job("bimetal_efficiency_ratio", gauge,
           "The job's rate by the sum of what the devices would do alone.", status.efficiency);
  if (status.schedule) {
    text.job("bimetal_pipeline_info", gauge, "The schedule of the pipeline's stages.", 1,
             fmt::format("{{schedule=\"{}\"}}", escaped(*status.schedule)));
  }
  text.job("bimetal_micro_batches", gauge, "Micro-batches that a step goes through stages in.",
           status.micro_batches);
  add_evaluation(text, progress::kTestData, status.test_metrics, status.test_loss);
  if (!status.validation_loss) return;
  add_evaluation(text, progress::kValidationData, status.validation_metrics,
                 status.validation_loss);
}

void add_workers(Text& text) {
  using enum Kind;
  text.workers("bimetal_worker_share_samples", gauge, "The worker's samples of the global batch.",
               &WorkerStatus::share);
  text.workers("bimetal_worker_silent_seconds", gauge,
               "For how long nothing has come from the worker, from 3 s on.",
               &WorkerStatus::silent_s);
  text.workers("bimetal_worker_samples_total", counter, "Samples that the worker has trained on.",
               &WorkerStatus::samples);
  text.workers("bimetal_worker_samples_per_second", gauge,
               "What the worker adds to the job's rate, over the last seconds.",
               &WorkerStatus::samples_per_s);
  text.workers("bimetal_worker_alone_samples_per_second", gauge,
               "The rate of the worker's own computation.", &WorkerStatus::samples_per_s_alone);
  text.workers("bimetal_worker_compute_seconds_total", counter, "Time in its own computation.",
               &WorkerStatus::compute_s);
  text.workers("bimetal_worker_communicate_seconds_total", counter,
               "Time from each step's first exchange to its last.", &WorkerStatus::communicate_s);
  text.workers("bimetal_worker_wait_seconds_total", counter,
               "Time in which it waited for exchanges and other ranks.", &WorkerStatus::wait_s);
  text.workers("bimetal_worker_wait_ratio", gauge,
               "Part of the time that it waited, over the last seconds.", &WorkerStatus::wait_part);
  text.workers("bimetal_worker_sent_bytes_total", counter,
               "Bytes sent over the network or loopback.", &WorkerStatus::bytes_sent);
  text.workers("bimetal_worker_sent_bytes_per_second", gauge,
               "Bytes sent per second, over the last seconds.", &WorkerStatus::bytes_per_s);
  text.workers("bimetal_worker_staleness_updates", gauge,
               "Mean staleness of its gradients over the last seconds, in updates.",
               &WorkerStatus::staleness);
  text.workers("bimetal_worker_max_staleness_updates", gauge,
               "Greatest staleness of its gradients so far, in updates.",
               &WorkerStatus::staleness_max);
}

}  // namespace

std::string to_prometheus(const Status& status) {
  Text text(status);
  add_job(text, status);
  if (status.step > 0) add_workers(text);
  return text.take();
}

}  // namespace bimetal::monitor
