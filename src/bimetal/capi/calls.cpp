// The collectives and messages of a group.

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "bimetal/capi/boundary.h"
#include "bimetal/comm/compress/compression.h"

using namespace bimetal;

namespace {

using comm::Buffer;
using comm::ConstBuffer;
using Counts = std::vector<std::size_t>;

comm::DType type_of(std::int32_t number) {
  const auto type = static_cast<comm::DType>(number);
  if (number < 0 || number > 255 || comm::size_of(type) == 0) {
    throw Error(ErrorCode::InvalidArgument,
                std::to_string(number) + " is no element type of bimetal_c.h");
  }
  return type;
}

comm::ReduceOp op_of(std::int32_t number) {
  if (number < BIMETAL_SUM || number > BIMETAL_PRODUCT) {
    throw Error(ErrorCode::InvalidArgument,
                std::to_string(number) + " is no reduction of bimetal_c.h");
  }
  return static_cast<comm::ReduceOp>(number);
}

std::size_t size_of_count(std::int64_t count) {
  if (count >= 0) return static_cast<std::size_t>(count);
  throw Error(ErrorCode::InvalidArgument, std::to_string(count) + " is no number of elements");
}

Counts counts_of(const std::int64_t* counts, int ranks) {
  Counts result;
  for (const auto count : capi::list(counts, ranks)) result.push_back(size_of_count(count));
  return result;
}

std::size_t sum_of(const Counts& counts) {
  std::size_t sum = 0;
  for (const auto count : counts) sum += count;
  return sum;
}

std::optional<Deadline> within(std::int64_t timeout_ms) {
  if (timeout_ms == 0) return std::nullopt;
  return capi::after(timeout_ms);
}

/// Hands out the work that `call` begins, or none where nothing is left to wait for or to ask.
template <typename Call>
std::int32_t begin(bimetal_group* group, bimetal_work** work, Call&& call) {
  return capi::guarded([&] {
    capi::require(group, "the group");
    capi::require(work, "the place for the work");
    *work = nullptr;
    comm::Work begun = call(group->group);
    const bool over = begun.done() && !begun.error() && begun.sender() < 0;
    if (!over) *work = new bimetal_work{std::move(begun)};
  });
}

std::size_t whole_of(const comm::Group& group, std::int64_t part) {
  return size_of_count(part) * static_cast<std::size_t>(group.size());
}

}  // namespace

struct bimetal_gathered {
  std::shared_ptr<comm::Gathered> gathered = std::make_shared<comm::Gathered>();
};

extern "C" {

std::int32_t bimetal_all_reduce(bimetal_group* group, void* data, std::int64_t count,
                                std::int32_t type, std::int32_t op, std::int64_t timeout_ms,
                                bimetal_work** work) {
  return begin(group, work, [&](comm::Group& in) {
    return in.all_reduce(Buffer{data, size_of_count(count), type_of(type)}, op_of(op),
                         within(timeout_ms));
  });
}

std::int32_t bimetal_all_reduce_compressed(bimetal_group* group, void* data, std::int64_t count,
                                           std::int32_t type, std::int32_t op, const char* scheme,
                                           std::int64_t timeout_ms, bimetal_work** work) {
  return begin(group, work, [&](comm::Group& in) {
    capi::require(scheme, "the scheme");
    const comm::Compression compression{.scheme = comm::scheme_of(scheme)};
    return in.all_reduce(Buffer{data, size_of_count(count), type_of(type)}, op_of(op), compression,
                         within(timeout_ms));
  });
}

std::int32_t bimetal_broadcast(bimetal_group* group, void* data, std::int64_t count,
                               std::int32_t type, std::int32_t root, std::int64_t timeout_ms,
                               bimetal_work** work) {
  return begin(group, work, [&](comm::Group& in) {
    return in.broadcast({data, size_of_count(count), type_of(type)}, root, within(timeout_ms));
  });
}

std::int32_t bimetal_reduce(bimetal_group* group, void* data, std::int64_t count, std::int32_t type,
                            std::int32_t op, std::int32_t root, std::int64_t timeout_ms,
                            bimetal_work** work) {
  return begin(group, work, [&](comm::Group& in) {
    return in.reduce({data, size_of_count(count), type_of(type)}, root, op_of(op),
                     within(timeout_ms));
  });
}

std::int32_t bimetal_all_gather(bimetal_group* group, const void* input, std::int64_t count,
                                void* output, const std::int64_t* counts, std::int32_t type,
                                std::int64_t timeout_ms, bimetal_work** work) {
  return begin(group, work, [&](comm::Group& in) {
    const ConstBuffer own{input, size_of_count(count), type_of(type)};
    if (counts == nullptr) {
      return in.all_gather(own, Buffer{output, whole_of(in, count), own.dtype}, within(timeout_ms));
    }
    const Counts parts = counts_of(counts, in.size());
    return in.all_gather(own, Buffer{output, sum_of(parts), own.dtype}, parts, within(timeout_ms));
  });
}

std::int32_t bimetal_reduce_scatter(bimetal_group* group, void* input, void* output,
                                    std::int64_t count, const std::int64_t* counts,
                                    std::int32_t type, std::int32_t op, std::int64_t timeout_ms,
                                    bimetal_work** work) {
  return begin(group, work, [&](comm::Group& in) {
    const Buffer own{output, size_of_count(count), type_of(type)};
    if (counts == nullptr) {
      return in.reduce_scatter(Buffer{input, whole_of(in, count), own.dtype}, own, op_of(op),
                               within(timeout_ms));
    }
    const Counts parts = counts_of(counts, in.size());
    return in.reduce_scatter(Buffer{input, sum_of(parts), own.dtype}, own, parts, op_of(op),
                             within(timeout_ms));
  });
}

std::int32_t bimetal_gather(bimetal_group* group, const void* input, void* output,
                            std::int64_t count, std::int32_t type, std::int32_t root,
                            std::int64_t timeout_ms, bimetal_work** work) {
  return begin(group, work, [&](comm::Group& in) {
    const ConstBuffer own{input, size_of_count(count), type_of(type)};
    Buffer all;
    if (in.rank() == root) all = {output, whole_of(in, count), own.dtype};
    return in.gather(own, all, root, within(timeout_ms));
  });
}

std::int32_t bimetal_scatter(bimetal_group* group, const void* input, void* output,
                             std::int64_t count, std::int32_t type, std::int32_t root,
                             std::int64_t timeout_ms, bimetal_work** work) {
  return begin(group, work, [&](comm::Group& in) {
    const Buffer own{output, size_of_count(count), type_of(type)};
    ConstBuffer all;
    if (in.rank() == root) all = {input, whole_of(in, count), own.dtype};
    return in.scatter(all, own, root, within(timeout_ms));
  });
}

std::int32_t bimetal_all_to_all(bimetal_group* group, const void* input,
                                const std::int64_t* send_counts, void* output,
                                const std::int64_t* receive_counts, std::int32_t type,
                                std::int64_t timeout_ms, bimetal_work** work) {
  return begin(group, work, [&](comm::Group& in) {
    capi::require(send_counts, "the counts to send");
    capi::require(receive_counts, "the counts to receive");
    const Counts to = counts_of(send_counts, in.size());
    const Counts from = counts_of(receive_counts, in.size());
    return in.all_to_all(ConstBuffer{input, sum_of(to), type_of(type)}, to,
                         Buffer{output, sum_of(from), type_of(type)}, from, within(timeout_ms));
  });
}

std::int32_t bimetal_send(bimetal_group* group, const void* data, std::int64_t count,
                          std::int32_t type, std::int32_t peer, std::uint64_t tag,
                          std::int64_t timeout_ms, bimetal_work** work) {
  return begin(group, work, [&](comm::Group& in) {
    return in.send({data, size_of_count(count), type_of(type)}, peer, tag, within(timeout_ms));
  });
}

std::int32_t bimetal_receive(bimetal_group* group, void* data, std::int64_t count,
                             std::int32_t type, std::int32_t peer, std::uint64_t tag,
                             std::int64_t timeout_ms, bimetal_work** work) {
  return begin(group, work, [&](comm::Group& in) {
    return in.recv({data, size_of_count(count), type_of(type)}, peer, tag, within(timeout_ms));
  });
}

std::int32_t bimetal_receive_from_anybody(bimetal_group* group, void* data, std::int64_t count,
                                          std::int32_t type, std::uint64_t tag,
                                          std::int64_t timeout_ms, bimetal_work** work) {
  return begin(group, work, [&](comm::Group& in) {
    return in.recv_from_anybody({data, size_of_count(count), type_of(type)}, tag,
                                within(timeout_ms));
  });
}

std::int32_t bimetal_all_gather_bytes(bimetal_group* group, const void* input, std::int64_t bytes,
                                      bimetal_gathered** gathered, std::int64_t timeout_ms,
                                      bimetal_work** work) {
  return begin(group, work, [&](comm::Group& in) {
    capi::require(gathered, "the place for what is gathered");
    auto made = std::make_unique<bimetal_gathered>();
    const std::span own(static_cast<const std::byte*>(input), size_of_count(bytes));
    auto begun = in.all_gather_bytes(own, made->gathered, within(timeout_ms));
    *gathered = made.release();
    return begun;
  });
}

std::int32_t bimetal_gathered_part(const bimetal_gathered* gathered, std::int32_t rank,
                                   const void** data, std::int64_t* bytes) {
  return capi::guarded([&] {
    capi::require(gathered, "what is gathered");
    const auto& parts = gathered->gathered->parts;
    if (rank < 0 || static_cast<std::size_t>(rank) >= parts.size()) {
      throw Error(ErrorCode::InvalidArgument,
                  "nothing has been gathered from rank " + std::to_string(rank));
    }
    const auto part = parts[static_cast<std::size_t>(rank)];
    *data = part.data();
    *bytes = static_cast<std::int64_t>(part.size());
  });
}

void bimetal_gathered_free(bimetal_gathered* gathered) {
  delete gathered;
}

std::int32_t bimetal_barrier(bimetal_group* group, std::int64_t timeout_ms, bimetal_work** work) {
  return begin(group, work, [&](comm::Group& in) { return in.barrier(within(timeout_ms)); });
}

}  // extern "C"

namespace bimetal::capi {

/// Belongs to the works that it watches, too, which may live longer than its handle.
class DoneKeys {
 public:
  void put(std::uint64_t key) {
    {
      std::lock_guard lock(mutex_);
      keys_.push_back(key);
    }
    changed_.notify_one();
  }

  /// False if there is none by the deadline.
  bool take(std::uint64_t& key, Deadline deadline) {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_until(lock, deadline.time(), [&] { return !keys_.empty(); })) return false;
    key = keys_.front();
    keys_.pop_front();
    return true;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::uint64_t> keys_;
};

}  // namespace bimetal::capi

using namespace bimetal;

namespace {

std::int32_t outcome_of(const comm::Work& work) {
  const auto error = work.error();
  return error ? capi::status_of(error) : BIMETAL_OK;
}

}  // namespace

struct bimetal_queue {
  std::shared_ptr<capi::DoneKeys> keys = std::make_shared<capi::DoneKeys>();
};

extern "C" {

std::int32_t bimetal_work_wait(const bimetal_work* work, std::int64_t timeout_ms) {
  if (work == nullptr) return BIMETAL_OK;
  if (timeout_ms < 0) return capi::guarded([&] { work->work.wait(); });
  bool done = false;
  const auto status = capi::guarded([&] { done = work->work.wait_until(capi::after(timeout_ms)); });
  if (status != BIMETAL_OK) return status;
  return done ? outcome_of(work->work) : BIMETAL_PENDING;
}

std::int32_t bimetal_work_test(const bimetal_work* work) {
  if (work == nullptr) return BIMETAL_OK;
  return work->work.done() ? outcome_of(work->work) : BIMETAL_PENDING;
}

std::int32_t bimetal_work_sender(const bimetal_work* work) {
  return work == nullptr ? -1 : work->work.sender();
}

void bimetal_work_free(bimetal_work* work) {
  delete work;
}

std::int32_t bimetal_queue_new(bimetal_queue** queue) {
  return capi::guarded([&] { *queue = new bimetal_queue; });
}

std::int32_t bimetal_queue_watch(bimetal_queue* queue, const bimetal_work* work,
                                 std::uint64_t key) {
  return capi::guarded([&] {
    if (work == nullptr) return queue->keys->put(key);
    work->work.on_done([keys = queue->keys, key](const std::exception_ptr&) { keys->put(key); });
  });
}

std::int32_t bimetal_queue_put(bimetal_queue* queue, std::uint64_t key) {
  return capi::guarded([&] { queue->keys->put(key); });
}

std::int32_t bimetal_queue_next(bimetal_queue* queue, std::int64_t timeout_ms, std::uint64_t* key) {
  bool found = false;
  const auto status =
      capi::guarded([&] { found = queue->keys->take(*key, capi::after(timeout_ms)); });
  if (status != BIMETAL_OK) return status;
  return found ? BIMETAL_OK : BIMETAL_PENDING;
}

void bimetal_queue_free(bimetal_queue* queue) {
  delete queue;
}

}  // extern "C"
