#include "bimetal/train/server/server_setup.h"

#include <c10/util/StringUtil.h>
#include <fmt/format.h>
#include <torch/csrc/api/include/torch/optim.h>
#include <torch/csrc/api/include/torch/types.h>
#include <torch/csrc/api/include/torch/utils.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "bimetal/base/deadline.h"
#include "bimetal/base/error.h"
#include "bimetal/checkpoint/optimizer_state.h"
#include "bimetal/checkpoint/safetensors.h"
#include "bimetal/data/sampler.h"
#include "bimetal/data/transfer/cache.h"
#include "bimetal/data/transfer/data_copies.h"
#include "bimetal/data/transfer/data_link.h"
#include "bimetal/data/transfer/shared_data.h"
#include "bimetal/job/job_keys.h"
#include "bimetal/net/silence.h"
#include "bimetal/optim/optimizers.h"
#include "bimetal/progress/together.h"
#include "bimetal/task/catalog/job_task.h"
#include "bimetal/task/task.h"

namespace bimetal::train {

std::function<std::int64_t(std::int64_t epoch, std::int64_t offset, std::int64_t count)>
weights_in_order(const task::Dataset& dataset, std::uint64_t seed) {
  auto weights = task::weights_of(dataset);
  if (weights.empty()) return {};
  return [sampler = data::EpochSampler(dataset.size(), seed, true, std::move(weights))](
             std::int64_t epoch, std::int64_t offset, std::int64_t count) mutable {
    sampler.seek({.epoch = epoch, .offset = offset});
    const std::array all{count};
    return sampler.deal(all, count).weight();
  };
}

bool weighs_servers(const job::ServersConfig& servers) {
  return servers.weigh && servers.weights.size() > 1 && servers.replicas == 1;
}

parallel::server::Weighing weighing_of(const job::JobConfig& job,
                                       parallel::server::ServerDirectory* directory,
                                       const parallel::server::Credentials& credentials) {
  return {*directory, server_processes(job.servers), credentials};
}

void set_weights(job::ServersConfig& servers, std::vector<double> weights) {
  servers.weights = std::move(weights);
  servers.weigh = false;
}

std::optional<std::chrono::milliseconds> peer_timeout_of(const job::JobConfig& job) {
  const double seconds = job.fabric.peer_timeout_s;
  return seconds > 0 ? std::optional(milliseconds_of(seconds))
                     : net::peer_timeout_from_environment();
}

parallel::server::ShardPlan plan_of_model(const job::JobConfig& job,
                                          const task::ModelState& model) {
  if (!model.buffers.empty()) {
    throw Error(ErrorCode::Unsupported,
                fmt::format("the model has the buffer '{}' (a running mean or the like), which "
                            "parameter servers do not keep; take parallel.mode = \"all_reduce\"",
                            model.buffers.front().name));
  }
  std::vector<std::int64_t> sizes;
  for (const auto& [name, tensor] : model.parameters) sizes.push_back(tensor.numel());
  const bool whole =
      optim::needs_whole_tensors(job.train) || job.compression.gradients == "powersgd";
  if (!whole || sizes.empty()) {
    return parallel::server::plan_shards(sizes, job.servers.weights);
  }
  const auto largest = std::max(std::ranges::max(sizes), std::int64_t{1});
  return parallel::server::plan_shards(sizes, job.servers.weights, largest);
}

std::vector<std::string> common_facts(const job::JobConfig& job, const task::Task& task,
                                      const task::ModelState& model) {
  std::vector<std::string> facts;
  for (const auto& [name, value] : job::facts_of(job)) {
    facts.push_back(fmt::format("{} = {}", name, value));
  }
  for (auto& fact : task.facts()) facts.push_back(std::move(fact));
  for (const auto& [name, tensor] : model.parameters) {
    facts.push_back(c10::str(name, " ", tensor.sizes(), " ", tensor.scalar_type()));
  }
  return facts;
}

namespace {

using parallel::server::Body;
using parallel::server::Piece;
using parallel::server::ServerState;
using parallel::server::ShardPlan;
using parallel::server::ShardStore;

std::string name_of(std::uint32_t piece) {
  return fmt::format("piece{}", piece);
}

/// The pieces as a model's parameters, so that what knows models knows them.
task::ModelState as_model(const ShardStore& store) {
  task::ModelState model;
  for (std::size_t i = 0; i < store.pieces().size(); ++i) {
    model.parameters.push_back({name_of(store.pieces()[i]), store.piece_tensors()[i]});
  }
  return model;
}

/// A field of a parameter's state that has one number for each of its elements.
bool is_elementwise(const torch::Tensor& field) {
  return field.dim() > 0;
}

/// "piece12.exp_avg" → 12, "exp_avg"; the second is empty for the parameter itself.
std::pair<std::uint32_t, std::string> parse_part(const std::string& name, const ShardPlan& plan) {
  constexpr std::string_view kPrefix = "piece";
  const auto dot = std::min(name.find('.'), name.size());
  std::uint32_t piece = 0;
  const char* const end = name.data() + dot;
  const auto parsed = name.starts_with(kPrefix)
                          ? std::from_chars(name.data() + kPrefix.size(), end, piece)
                          : std::from_chars_result{nullptr, std::errc::invalid_argument};
  if (parsed.ec != std::errc() || parsed.ptr != end || piece >= plan.pieces.size()) {
    throw Error(ErrorCode::CorruptData, fmt::format("no piece is called '{}'", name));
  }
  return {piece, dot < name.size() ? name.substr(dot + 1) : std::string()};
}

/// Writes a piece's part of a field into the whole tensor, which is made when its first part comes.
void place_part(const Piece& piece, const torch::Tensor& part, const torch::Tensor& like,
                torch::Tensor& whole) {
  if (!is_elementwise(part)) {
    whole = part;
    return;
  }
  if (part.numel() != piece.count) {
    throw Error(ErrorCode::CorruptData, "a part of a tensor has another length than its piece");
  }
  if (!whole.defined()) whole = torch::zeros(like.sizes(), part.scalar_type());
  whole.flatten().narrow(0, piece.offset, piece.count).copy_(part.flatten());
}

}  // namespace

Body shard_state(ShardStore& store) {
  checkpoint::TensorMap all;
  for (std::size_t i = 0; i < store.pieces().size(); ++i) {
    all[name_of(store.pieces()[i])] = store.piece_tensors()[i];
  }
  if (!all.empty()) all.merge(checkpoint::optimizer_tensors(store.optimizer(), as_model(store)));
  return checkpoint::encode_safetensors(all);
}

void assemble_state(std::span<const ServerState> states, const ShardPlan& plan,
                    const task::ModelState& model, torch::optim::Optimizer& optimizer) {
  const auto& named = model.parameters;
  std::vector<torch::Tensor> values(named.size());
  checkpoint::TensorMap learnt;
  for (const ServerState& state : states) {
    try {
      for (const auto& [name, part] : checkpoint::decode_safetensors(state.bytes, "it")) {
        const auto [number, field] = parse_part(name, plan);
        const Piece& piece = plan.pieces[number];
        const auto& parameter = named[piece.tensor];
        auto& whole = field.empty() ? values[piece.tensor] : learnt[parameter.name + "." + field];
        place_part(piece, part, parameter.tensor, whole);
      }
    } catch (const Error& error) {
      throw Error(error.code(),
                  fmt::format("the state that server {} has sent: {}", state.shard, error.what()),
                  state.shard);
    }
  }
  const torch::NoGradGuard no_grad;
  for (std::size_t i = 0; i < named.size(); ++i) {
    if (values[i].defined()) named[i].tensor.detach().copy_(values[i]);
  }
  optimizer.state() = checkpoint::optimizer_states(learnt, optimizer, model, "the servers' state");
}

void restore_shard(ShardStore& store, const torch::optim::Optimizer& optimizer,
                   const task::ModelState& model) {
  if (store.pieces().empty()) return;
  const auto learnt = checkpoint::optimizer_tensors(optimizer, model);
  const auto& named = model.parameters;
  checkpoint::TensorMap parts;
  for (std::size_t i = 0; i < store.pieces().size(); ++i) {
    const auto number = store.pieces()[i];
    const Piece& piece = store.plan().pieces[number];
    for (const auto& [field, part] :
         checkpoint::part_of_state(learnt, named[piece.tensor].name, piece.offset, piece.count)) {
      parts[name_of(number) + "." + field] =
          is_elementwise(part) ? part.view_as(store.piece_tensors()[i]) : part;
    }
  }
  store.optimizer().state() = checkpoint::optimizer_states(
      parts, store.optimizer(), as_model(store), "the checkpoint's part for this server");
}

namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds;

/// All that the receiving needs: it is shared with a thread that may be left behind.
struct Receiving {
  Receiving(const job::JobConfig& job, const TrainerOptions& options, const Error& missing,
            const net::Endpoint& at, parallel::server::Credentials credentials)
      : config(job.data),
        own{.host = options.host_name, .code = missing.code(), .missing = missing.what()},
        at(at),
        credentials(std::move(credentials)),
        timeout(milliseconds_of(job.parallel.timeout_s)) {}

  fs::path receive(progress::Meter& meter);
  std::optional<std::string> take_note() {
    const std::scoped_lock lock(mutex);
    return std::exchange(note, std::nullopt);
  }

  const job::DataConfig config;
  const data::Copy own;
  const net::Endpoint at;
  const parallel::server::Credentials credentials;
  const milliseconds timeout;
  const data::Cache cache;
  fs::path folder;  ///< in the end

 private:
  data::Delivery ask(data::DataClient& client) const;
  void have_it_sent(const data::Delivery& delivery, progress::Meter& meter);
  std::string sender() const { return fmt::format("server 0 ({})", net::to_string(at)); }

  std::mutex mutex;
  std::optional<std::string> note;
};

data::Delivery Receiving::ask(data::DataClient& client) const {
  client.connect(at, credentials);
  return data::delivery_of(client.ask(own), config.name, &cache, own.host);
}

fs::path Receiving::receive(progress::Meter& meter) {
  data::CacheLock turn(cache, "sent-" + config.name, timeout, meter);
  data::Delivery delivery;
  {
    data::DataClient client(sender(), timeout, meter);
    delivery = ask(client);
  }
  // Reading the files there may take long, and nobody would listen to the sender meanwhile.
  if (!data::in_cache(delivery, meter)) have_it_sent(delivery, meter);
  turn.mark_done();
  return delivery.target;
}

void Receiving::have_it_sent(const data::Delivery& delivery, progress::Meter& meter) {
  std::uint64_t bytes = 0;
  for (const auto& file : delivery.files) bytes += file.size;
  if (const auto why_not = data::too_large(config, bytes))
    throw data::not_sent(own.host, *why_not, own.missing);
  data::DataClient client(sender(), timeout, meter);
  ask(client);
  {
    const std::scoped_lock lock(mutex);
    note = data::sending_note(own.host, own.missing, sender(), bytes);
  }
  data::keep_delivery(delivery, meter,
                      [&](const fs::path& into) { client.receive(delivery.files, into); });
}

/// Tells the receiving thread's notes.
class Receiver final : public progress::Observer {
 public:
  Receiver(std::shared_ptr<Receiving> receiving, progress::Observer& observer)
      : receiving_(std::move(receiving)), observer_(observer) {}

  void on_data(const progress::DataProgress& progress) override {
    tell_note();
    observer_.on_data(progress);
  }
  void tell_note() {
    if (const auto note = receiving_->take_note()) observer_.on_notice(*note);
  }

 private:
  const std::shared_ptr<Receiving> receiving_;
  progress::Observer& observer_;
};

/// An error on the way to the sender names the sender.
Error with_context(const Error& error, const std::string& host) {
  if (error.code() != ErrorCode::PeerLost && error.code() != ErrorCode::Timeout) return error;
  return {error.code(),
          fmt::format("{} has no copy of the data set, and the sending of one has failed: {}", host,
                      error.what())};
}

data::DatasetFiles receive_data(comm::Group alone, std::shared_ptr<Receiving> receiving,
                                const TrainerOptions& options, progress::Observer& observer) {
  Receiver receiver(receiving, observer);
  const progress::Task task = [receiving](progress::Meter& meter) {
    receiving->folder = receiving->receive(meter);
  };
  try {
    progress::run_together(
        std::move(alone), task,
        {"receiving the data", receiving->timeout, options.interrupt_requested, {}}, receiver);
  } catch (const progress::Interrupted&) {
    throw;
  } catch (const Error& error) {
    receiver.tell_note();
    throw with_context(error, options.host_name);
  }
  receiver.tell_note();
  return data::find_dataset(receiving->config.name, receiving->folder);
}

}  // namespace

data::DatasetFiles find_job_data(comm::Group alone, const job::JobConfig& job,
                                 const TrainerOptions& options, const DataSender& sender,
                                 progress::Observer& observer) {
  observer.on_phase("loading data");
  if (task::is_python_task(job)) return {};
  std::optional<Error> missing;
  try {
    return data::share_dataset(alone, job.data,
                               {.host_name = options.host_name,
                                .fetch = options.fetch,
                                .timeout = milliseconds_of(job.parallel.timeout_s),
                                .interrupt_requested = options.interrupt_requested},
                               observer);
  } catch (const progress::Interrupted&) {
    throw;
  } catch (const Error& error) {
    if (!sender.directory) throw;
    missing = error;
  }
  if (const auto why_not = data::forbidden(job.data)) {
    throw data::not_sent(options.host_name, *why_not, missing->what());
  }
  const auto at = sender.directory->find_data();
  if (!at) {
    throw data::not_sent(options.host_name, "server 0, which would send it, has none either",
                         missing->what());
  }
  return receive_data(std::move(alone),
                      std::make_shared<Receiving>(job, options, *missing, *at, sender.credentials),
                      options, observer);
}

}  // namespace bimetal::train
