#include "bimetal/parallel/server/step_record.h"

#include "bimetal/base/wire.h"

namespace bimetal::parallel::server {
namespace {

void write(WireWriter& out, const WorkerFigures& worker) {
  out.i32(worker.number);
  out.string(worker.host);
  out.string(worker.device);
  out.u8(static_cast<std::uint8_t>((worker.here ? 1 : 0) | (worker.lost ? 2 : 0)));
  for (const auto count : {worker.updates, worker.samples, worker.dropped, worker.staleness_max}) {
    out.i64(count);
  }
  for (const double figure : {worker.compute_seconds, worker.communicate_seconds,
                              worker.wait_seconds, worker.staleness_sum}) {
    out.f64(figure);
  }
  out.u64(worker.bytes_sent);
}

WorkerFigures read_worker(WireReader& in) {
  WorkerFigures worker;
  worker.number = in.i32();
  worker.host = in.string();
  worker.device = in.string();
  const auto state = in.u8();
  worker.here = (state & 1) != 0;
  worker.lost = (state & 2) != 0;
  for (auto* count : {&worker.updates, &worker.samples, &worker.dropped, &worker.staleness_max}) {
    *count = in.i64();
  }
  for (auto* figure : {&worker.compute_seconds, &worker.communicate_seconds, &worker.wait_seconds,
                       &worker.staleness_sum}) {
    *figure = in.f64();
  }
  worker.bytes_sent = in.u64();
  return worker;
}

}  // namespace

Body encode(const StepEvent& event) {
  WireWriter out;
  out.i64(event.step.number);
  out.i64(event.step.epoch);
  out.i64(event.step.total);
  out.u8(event.step.ends_epoch ? 1 : 0);
  out.f64(event.loss_sum);
  out.i64(event.weight);
  out.u32(static_cast<std::uint32_t>(event.shares.size()));
  for (const auto& [worker, share] : event.shares) {
    out.i32(worker);
    out.i64(share);
  }
  out.u32(static_cast<std::uint32_t>(event.workers.size()));
  for (const auto& worker : event.workers) write(out, worker);
  return std::move(out).take();
}

// The counts allocate nothing: each element is read before the next, and reading ends with the
// body.
StepEvent decode_step_record(std::span<const std::byte> body) {
  WireReader in(body);
  StepEvent event;
  event.step.number = in.i64();
  event.step.epoch = in.i64();
  event.step.total = in.i64();
  event.step.ends_epoch = in.u8() != 0;
  event.loss_sum = in.f64();
  event.weight = in.i64();
  for (auto left = in.u32(); left > 0; --left) {
    const auto worker = in.i32();
    event.shares[worker] = in.i64();
  }
  for (auto left = in.u32(); left > 0; --left) event.workers.push_back(read_worker(in));
  in.expect_end();
  return event;
}

}  // namespace bimetal::parallel::server
