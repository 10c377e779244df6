#include "bimetal/parallel/server/events.h"

#include "bimetal/base/wire_fields.h"

namespace bimetal::parallel::server {

template <typename Wire>
void fields(Wire& wire, WorkerFigures& worker) {
  wire(worker.number, worker.host, worker.device, worker.here, worker.lost, worker.updates,
       worker.samples, worker.dropped, worker.staleness_max, worker.compute_seconds,
       worker.communicate_seconds, worker.wait_seconds, worker.staleness_sum, worker.bytes_sent);
}

template <typename Wire>
void fields(Wire& wire, StepEvent& event) {
  auto& step = event.step;
  wire(step.number, step.epoch, step.total, step.ends_epoch, event.loss_sum, event.weight,
       event.shares, event.workers);
}

Body encode(const StepEvent& event) {
  return write_fields(event);
}

StepEvent decode_step_record(std::span<const std::byte> body) {
  return read_fields<StepEvent>(body);
}

}  // namespace bimetal::parallel::server
