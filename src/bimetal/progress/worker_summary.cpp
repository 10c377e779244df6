#include "bimetal/progress/worker_summary.h"

#include <utility>

#include "bimetal/base/wire.h"
#include "bimetal/comm/exchange.h"

namespace bimetal::progress {
namespace {

comm::Bytes encode_summary(const WorkerSummary& summary) {
  WireWriter writer;
  writer.string(summary.host);
  writer.string(summary.device);
  writer.f64(summary.elapsed_seconds);
  writer.f64(summary.communicate_seconds);
  writer.f64(summary.wait_seconds);
  writer.u64(summary.bytes_sent);
  return std::move(writer).take();
}

WorkerSummary decode_summary(const comm::Bytes& bytes) {
  WireReader reader(bytes);
  WorkerSummary summary;
  summary.host = reader.string();
  summary.device = reader.string();
  summary.elapsed_seconds = reader.f64();
  summary.communicate_seconds = reader.f64();
  summary.wait_seconds = reader.f64();
  summary.bytes_sent = reader.u64();
  reader.expect_end();
  return summary;
}

}  // namespace

std::vector<WorkerSummary> gather_summaries(comm::Group group, const WorkerSummary& mine,
                                            std::chrono::milliseconds timeout) {
  std::vector<WorkerSummary> summaries;
  for (const auto& bytes :
       comm::all_gather_bytes(group, encode_summary(mine), Deadline::after(timeout))) {
    summaries.push_back(decode_summary(bytes));
  }
  return summaries;
}

}  // namespace bimetal::progress
