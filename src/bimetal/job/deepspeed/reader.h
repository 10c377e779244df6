#pragma once
// Reading objects of JSON by tables of their keys. Private to this layer.

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "bimetal/job/deepspeed.h"
#include "bimetal/job/job_config.h"

namespace bimetal::job::deepspeed {

using Json = nlohmann::json;

/// A value and where it stands.
struct Value {
  const Json& json;
  std::string origin;  ///< the file
  std::string key;     ///< "fp16.loss_scale"
  const Notify& notify;

  /// Each is InvalidArgument with the key for another type or a value out of range.
  bool flag() const;
  std::int64_t whole(std::int64_t least) const;
  double number(double least) const;  ///< `least` included
  double number_above(double least) const;
  std::string text() const;
  std::string one_of(std::span<const std::string_view> words) const;
  std::vector<double> numbers() const;

  [[noreturn]] void refuse(const std::string& problem) const;       ///< InvalidArgument
  [[noreturn]] void unsupported(const std::string& problem) const;  ///< Unsupported
  /// Tells that it has no effect.
  void no_effect(std::string_view why) const;
};

/// A key and what becomes of its value.
struct Key {
  std::string_view name;
  std::function<void(const Value&)> read;
};

/// Gives the values of an object to its keys, in the order of `keys`; null and "auto" count as not
/// there. InvalidArgument for values that are no object, and for keys that `keys` does not have.
void read_object(const Value& object, const std::vector<Key>& keys);

/// A key that is told of whatever its value is.
Key without_effect(std::string_view name, std::string_view why);

/// A key that is told of unless its value is false, 0 or an object that says "enabled": false.
Key without_effect_if_set(std::string_view name, std::string_view why);

/// A key that must be false, 0, or an object that says "enabled": false.
Key must_be_off(std::string_view name, std::string_view instead);

// The settings that the sections of the file make in a job. Each takes a section's value; errors as
// apply_deepspeed()'s. Private to this layer.

void read_optimizer(const Value& section, TrainConfig& train);

/// After the optimizer, whose rate a cosine's warm-up is a part of.
void read_scheduler(const Value& section, TrainConfig& train);

void read_fp16(const Value& section, TrainConfig& train);
void read_bf16(const Value& section, TrainConfig& train);
void read_torch_autocast(const Value& section, TrainConfig& train);

void read_zero(const Value& section, JobConfig& job);
void read_activation_checkpointing(const Value& section, TrainConfig& train);
void read_tensorboard(const Value& section, MonitorConfig& monitor);

// The three batch sizes of the file, which have to agree. Private to this layer.

struct BatchSizes {
  std::optional<std::int64_t> train;         ///< train_batch_size: that of a step, over all
                                             ///< ranks
  std::optional<std::int64_t> micro;         ///< train_micro_batch_size_per_gpu
  std::optional<std::int64_t> accumulation;  ///< gradient_accumulation_steps
};

/// Those that are missing, from the others; `ranks` is 0 where it is not known. A micro-batch that
/// is not in the file stays empty: the devices' speeds then decide the shares. InvalidArgument, as
/// `file.refuse()` says it, if they do not agree, or the ranks are needed and not known.
BatchSizes completed(BatchSizes sizes, int ranks, const Value& file);

}  // namespace bimetal::job::deepspeed
