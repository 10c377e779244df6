// Group's compressed all-reduce.
#include "bimetal/comm/compress/compressed_reduction.h"
#include "bimetal/comm/group.h"
#include "bimetal/comm/group/arguments.h"
#include "bimetal/comm/group/group_impl.h"

namespace bimetal::comm {

Work Group::all_reduce(Buffer data, ReduceOp op, const Compression& compression,
                       std::optional<Deadline> deadline) {
  if (compression.scheme == Scheme::none) return all_reduce(data, op, deadline);
  auto& group = impl();
  check_buffer(data, "data");
  check_reduce_op(op);
  const Call call{.operation = Operation::all_reduce,
                  .dtype = data.dtype,
                  .reduce_op = op,
                  .count = data.count,
                  .compression = tag_of(compression, data.count, data.dtype, op)};
  return group.run(call, deadline, [&group, data, op, compression](Channel& channel) {
    channel.note_algorithm("compressed");
    compressed_all_reduce(channel, data, op, compression, group.islands());
  });
}

}  // namespace bimetal::comm
