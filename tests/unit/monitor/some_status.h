#pragma once
// A status with a number in every field.

#include "bimetal/monitor/status.h"

namespace bimetal::monitor::test {

inline Status some_status() {
  return {.started_at = 1700000000.5,
          .phase = "training",
          .epoch = 2,
          .epochs = 5,
          .step = 340,
          .steps = 590,
          .elapsed_s = 12.25,
          .since_step_s = 0.125,
          .loss = 0.412,
          .samples_per_s = 8412,
          .efficiency = 0.97,
          .seconds_left = 15.5,
          .learning_rate = 0.0625,
          .loss_scale = 1024,
          .counts = "tokens",
          .test_metrics = {{"accuracy", 0.875}, {"perplexity", 12.5}},
          .test_loss = 0.3125,
          .validation_metrics = {{"accuracy", 0.75}},
          .validation_loss = 0.5,
          .schedule = "1f1b",
          .micro_batches = 8,
          .notices = {"a note"},
          .workers = {{.rank = 0,
                       .host = "pc",
                       .device = "cuda:0",
                       .share = 410,
                       .memory_bytes = 5e9,
                       .samples_per_s_alone = 6730,
                       .samples_per_s = 6700,
                       .wait_part = 0.03125,
                       .bytes_per_s = 1e6,
                       .staleness = 1.5,
                       .staleness_max = 4,
                       .samples = 139400,
                       .compute_s = 20.5,
                       .communicate_s = 3,
                       .wait_s = 0.5,
                       .bytes_sent = 123456789},
                      {.rank = 1,
                       .silent_s = 4.5,
                       .host = "a \"mac\"\\\n\xff",
                       .device = "mps",
                       .stage = "stage 1 of 2",
                       .share = 102}}};
}

}  // namespace bimetal::monitor::test
