#pragma once
// What training tells whoever watches: the library itself prints nothing.

#include <cstdint>
#include <string>
#include <vector>

namespace bimetal::train {

/// State after a step; the vectors have one entry per rank. Valid on every rank.
struct Progress {
  std::int64_t epoch = 0, epochs = 0;        ///< epoch counts from 1
  std::int64_t step = 0, steps = 0;          ///< optimizer steps done, and planned in all
  double loss = 0;                           ///< mean over this step's global batch
  double samples_per_s = 0;                  ///< over the last seconds
  double efficiency = 0;                     ///< see docs/balance.md
  double seconds_left = 0;
  std::vector<std::int64_t> shares;
  std::vector<double> rank_samples_per_s;    ///< each one's compute rate
};

/// How far the ranks are with data that must be read, fetched or sent before training.
struct DataProgress {
  std::string what;         ///< "sending 29.5 MiB of data to 1 machine"
  double part = 0;          ///< done, 0…1; NaN where it is not known how much there is
  double seconds_left = 0;  ///< NaN where it is not known
};

class Observer {
 public:
  virtual ~Observer() = default;
  virtual void on_phase(const std::string& /*what*/) {}  ///< "loading data", "waiting for 1 rank"…
  virtual void on_data(const DataProgress&) {}
  virtual void on_step(const Progress&) {}
  virtual void on_evaluated(std::int64_t /*epoch*/, double /*accuracy*/, double /*loss*/) {}
  virtual void on_checkpoint(const std::string& /*path*/, std::int64_t /*step*/) {}
  virtual void on_notice(const std::string& /*text*/) {}  ///< shares capped, worker of no use…
};

}  // namespace bimetal::train
