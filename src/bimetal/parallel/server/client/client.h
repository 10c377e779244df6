#pragma once
// A worker's side: its connections with all servers. A thread of its own moves the bytes, so that
// gradients leave while backward still runs.

#include <torch/csrc/api/include/torch/types.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "bimetal/base/deadline.h"
#include "bimetal/comm/compress/compression.h"
#include "bimetal/net/endpoint.h"
#include "bimetal/net/token.h"
#include "bimetal/parallel/server/codec.h"
#include "bimetal/parallel/server/link/message.h"
#include "bimetal/parallel/server/shard_plan.h"

namespace bimetal::parallel::server {

struct ClientOptions {
  std::vector<net::Endpoint> servers;  ///< by number
  /// Server k keeps shard k mod shards; 0: there are as many as servers. With twice as many servers
  /// each shard has two keepers: gradients go to both, and one of them may die.
  int shards = 0;
  std::set<int> gone;  ///< numbers of servers that have died already
  net::Token token;
  net::Encryption encryption = net::Encryption::off;
  std::string job_id = "job";
  Join join;
  /// Longest wait for parameters, and for a server that says nothing, as patience_for() has it.
  std::chrono::milliseconds timeout{60000};
  std::optional<std::chrono::milliseconds> peer_timeout = {};
  /// Compression of pushed gradients, with error feedback; for float32 alone.
  PushCompression compression;
  /// Compression of pulled parameters: float16, bfloat16 or int8, for float32 alone.
  comm::Scheme pull_compression = comm::Scheme::none;
  /// The size of the shared memory, one ring for each direction, for tensors to and from servers
  /// that turn out to see it: those of this host. 0: all go through the connections.
  std::size_t ring_bytes = std::size_t{4} << 20;
  /// Asked while it waits for servers at the beginning: whether to give up, with Aborted.
  std::function<bool()> give_up;
  /// Asked then, too: whether a server has died. With copies its own takes its place; without, that
  /// is an error at once. Empty: nobody knows.
  std::function<bool(int server)> lost = {};
};

/// One worker. Calls from one thread at a time; push() from the threads of backward. Errors: those
/// that the servers refuse it with; PeerLost, Timeout, naming the server.
class Client {
 public:
  /// Connects and joins; `parameters` are the model's, in the plan's order. They get their values
  /// with start_pull() and finish_pull(). Errors of net::dial.
  Client(const ClientOptions& options, const ShardPlan& plan, std::vector<torch::Tensor> parameters,
         Deadline deadline);
  ~Client();
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  /// This worker's number in the job.
  int number() const noexcept;

  /// Waits for work. Nothing when the job is done, or by the deadline: see finished().
  std::optional<Lease> next(Deadline deadline);
  bool finished() const;

  enum class Values { compressed, exact };

  /// Begins a lease: asks for parameters of its version or newer, as they are expected to be after
  /// the number of steps that it names. They are compressed as ClientOptions say, or not at all. It
  /// does not ask if they are on their way already. If the servers have leased out more by then,
  /// the next lease's are fetched into a second set of memory while this one is computed. The
  /// computation of the lease before must be over. A parameter must not be used before wait_for()
  /// has returned for it, or finish_pull(). Error(InvalidArgument) if those that were asked for
  /// before are not all here.
  void start_pull(const Lease& lease, Values values);
  /// The same without a lease: parameters of version `version` or newer.
  void start_pull(std::uint64_t version, Values values);
  /// Waits until parameter `tensor` is in place: on the CPU it may be given other memory
  /// (set_data). From then on nothing changes it until the next start_pull(), not even a server's
  /// death.
  void wait_for(std::size_t tensor);
  /// Waits until all are in place and returns the version of the oldest of them. May be repeated.
  std::uint64_t finish_pull();
  /// The version of the newest of them.
  std::uint64_t newest_pulled() const;

  /// The step that the next pushes are of, counted from the beginning of the training, for what
  /// compression does in its first ones; 0 at first. While nothing is pushed.
  void set_step(std::int64_t step) noexcept;
  /// Sends parameter `tensor`'s gradient for a lease. Returns at once; the tensor's memory must not
  /// be changed any more. Thread-safe.
  void push(std::uint64_t lease, std::size_t tensor, const torch::Tensor& gradient);
  /// All gradients of the lease have been pushed.
  void end_push(std::uint64_t lease);
  void done(std::uint64_t lease, Done done);

  /// Lines of this worker's log, for those that watch the job.
  void say(std::vector<progress::RankLine> lines);

  /// Says goodbye.
  void leave();

  std::uint64_t bytes_sent() const noexcept;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace bimetal::parallel::server
