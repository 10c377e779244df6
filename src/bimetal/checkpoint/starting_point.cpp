#include "bimetal/checkpoint/starting_point.h"

#include <ATen/CPUGeneratorImpl.h>
#include <fmt/format.h>
#include <torch/csrc/api/include/torch/optim.h>
#include <torch/csrc/api/include/torch/types.h>
#include <torch/csrc/api/include/torch/utils.h>

#include <algorithm>
#include <deque>
#include <string>
#include <string_view>
#include <utility>

#include "bimetal/base/deadline.h"
#include "bimetal/base/error.h"
#include "bimetal/base/typed_text.h"
#include "bimetal/checkpoint/checkpoint.h"
#include "bimetal/checkpoint/checkpoint_manifest.h"
#include "bimetal/checkpoint/optimizer_state.h"
#include "bimetal/checkpoint/safetensors.h"
#include "bimetal/comm/exchange.h"

namespace bimetal::checkpoint {
namespace {

TrainingState fresh_start(const comm::Group& group, const job::JobConfig& job) {
  TrainingState start;
  start.seed = job.train.seed;
  start.global_batch = job.train.global_batch;
  const auto follow_the_last = [&] { start.term = last_save(job.checkpoint.dir).term + 1; };
  comm::on_rank_0(group, follow_the_last, Deadline::after(kFileTimeout));
  return start;
}

/// Where `saved` left off.
TrainingState go_on(TrainingState start, const TrainingState& saved, progress::Observer& observer) {
  if (saved.seed != start.seed) {
    throw Error(
        ErrorCode::InvalidArgument,
        fmt::format("the checkpoint was made with train.seed = {} and this job has {}: the order "
                    "of samples would change within the epoch; resume with train.seed = {}",
                    saved.seed, start.seed, saved.seed));
  }
  if (saved.global_batch != start.global_batch) {
    observer.on_notice(fmt::format(
        "the checkpoint was made with train.global_batch = {}; this job goes on with {}",
        saved.global_batch, start.global_batch));
  }
  start.step = saved.step;
  start.position = saved.position;
  start.error_feedback = saved.error_feedback;
  start.loss_scaler = saved.loss_scaler;
  start.model = saved.model;
  set_random_state(saved.torch_rng);
  return start;
}

/// Every element type's size divides it.
constexpr std::int64_t kSliceBytes = 1 << 20;
constexpr std::size_t kUnderWay = 8;
/// Tensors up to this size, such as step counts, go with the state.
constexpr std::size_t kSmall = 4096;
constexpr std::size_t kDigits = 20;

/// The optimizer's state: small tensors that go with the state, and large ones that are sent in
/// slices.
struct Learnt {
  TensorMap small, large;
};

Learnt learnt_by(const torch::optim::Optimizer& optimizer, const task::ModelState& model) {
  Learnt learnt;
  for (auto& [name, tensor] : optimizer_tensors(optimizer, model)) {
    require_storable(name, tensor);
    (tensor.nbytes() > kSmall ? learnt.large : learnt.small).emplace(name, tensor);
  }
  return learnt;
}

/// The facts that others need to make room for the tensors: their whole size, in digits, and their
/// header.
std::string header_of(const TensorMap& tensors) {
  std::vector<TensorEntry> entries;
  std::uint64_t end = 0;
  for (const auto& [name, tensor] : tensors) {
    const auto begin = std::exchange(end, end + tensor.nbytes());
    entries.push_back({name, tensor.scalar_type(), tensor.sizes().vec(), begin, end});
  }
  return fmt::format("{:0{}}{}", end, kDigits, header_text(entries));
}

/// Room for what `header` describes: that of `own` where it fits.
TensorMap room_for(std::string_view header, const TensorMap& own, const std::string& origin) {
  if (header.size() < kDigits) refuse_safetensors(origin, "it ends early");
  const auto size = std::strtoull(std::string(header.substr(0, kDigits)).c_str(), nullptr, 10);
  TensorMap room;
  for (const auto& entry : parse_header(header.substr(kDigits), size, origin)) {
    const auto found = own.find(entry.name);
    const bool fits = found != own.end() && found->second.scalar_type() == entry.dtype &&
                      found->second.sizes() == torch::IntArrayRef(entry.shape);
    room[entry.name] = fits ? found->second : torch::empty(entry.shape, entry.dtype);
  }
  return room;
}

/// One rank's part in sending tensors in slices. All ranks go through the same slices.
class Slices {
 public:
  Slices(comm::Group group, const std::vector<bool>& behind, std::chrono::milliseconds timeout)
      : group_(std::move(group)), timeout_(timeout) {
    for (int rank = 0; rank < group_.size(); ++rank) {
      (behind[static_cast<std::size_t>(rank)] ? followers_ : sources_).push_back(rank);
    }
    follows_ = behind[static_cast<std::size_t>(group_.rank())];
  }

  int first_source() const { return sources_.front(); }

  /// From every source its part; or all of it from the first.
  void exchange(const torch::Tensor& tensor, bool from_first) {
    const bool in_place = tensor.is_cpu() && tensor.is_contiguous();
    auto flat = follows_ && !in_place ? torch::empty({tensor.numel()}, tensor.scalar_type())
                                      : tensor.detach().contiguous().view(-1);
    const auto each = kSliceBytes / static_cast<std::int64_t>(tensor.element_size());
    for (std::int64_t begin = 0; begin < flat.numel(); begin += each) {
      const auto source = from_first ? first_source() : sources_[turn_++ % sources_.size()];
      const auto slice = flat.narrow(0, begin, std::min(each, flat.numel() - begin));
      if (follows_) {
        receive(slice, source);
      } else if (source == group_.rank()) {
        send(slice.to(torch::kCPU).contiguous());
      }
    }
    if (!follows_ || in_place) return;
    finish();
    torch::Tensor(tensor).copy_(flat.view(tensor.sizes()));
  }

  void finish() { wait_until(0); }

 private:
  struct Sent {
    torch::Tensor slice;
    comm::Work work;
  };

  void send(const torch::Tensor& slice) {
    for (const int follower : followers_) {
      const comm::ConstBuffer data{slice.const_data_ptr(), slice.nbytes(), comm::DType::uint8};
      add(slice, group_.send(data, follower, 0, Deadline::after(timeout_)));
    }
  }

  void receive(const torch::Tensor& slice, int source) {
    const comm::Buffer data{slice.mutable_data_ptr(), slice.nbytes(), comm::DType::uint8};
    add(slice, group_.recv(data, source, 0, Deadline::after(timeout_)));
  }

  void add(const torch::Tensor& slice, comm::Work work) {
    under_way_.push_back({slice, std::move(work)});
    wait_until(kUnderWay);
  }

  void wait_until(std::size_t left) {
    while (under_way_.size() > left) {
      under_way_.front().work.wait();
      under_way_.pop_front();
    }
  }

  comm::Group group_;
  std::chrono::milliseconds timeout_;
  std::vector<int> sources_, followers_;
  bool follows_ = false;
  std::size_t turn_ = 0;
  std::deque<Sent> under_way_;
};

}  // namespace

TrainingState starting_point(comm::Group group, const job::JobConfig& job,
                             const std::optional<std::filesystem::path>& resume,
                             const task::ModelState& model, torch::optim::Optimizer& optimizer,
                             progress::Observer& observer) {
  auto start = fresh_start(group, job);
  const auto saved = load_shared_checkpoint(std::move(group), resume, model, optimizer);
  return saved ? go_on(std::move(start), *saved, observer) : start;
}

TrainingState starting_point(comm::Group group, const job::JobConfig& job,
                             const SharedReader& saved, progress::Observer& observer) {
  auto start = fresh_start(group, job);
  return saved.found() ? go_on(std::move(start), saved.state(), observer) : start;
}

std::int64_t planned_steps(const job::TrainConfig& config, std::int64_t dataset_size,
                           const TrainingState& start) {
  const auto steps_for = [&](std::int64_t samples) {
    return (samples + config.global_batch - 1) / config.global_batch;
  };
  const auto epochs_left = config.epochs - start.position.epoch;
  if (epochs_left <= 0) return start.step;
  const auto all = start.step + steps_for(dataset_size - start.position.offset) +
                   (epochs_left - 1) * steps_for(dataset_size);
  return config.steps > 0 ? std::max(start.step, std::min(all, config.steps)) : all;
}

std::optional<std::string> early_end(const job::TrainConfig& config, std::int64_t planned) {
  if (config.steps <= planned) return std::nullopt;
  return fmt::format(
      "train.steps = {}, but {} (train.epochs) {} over after {}, and so is the job; raise "
      "train.epochs to go on until then",
      config.steps, counted(config.epochs, "epoch"), config.epochs == 1 ? "is" : "are",
      counted(planned, "step"));
}

void set_random_state(const std::vector<std::uint8_t>& state) {
  auto generator = at::detail::getDefaultCPUGenerator();
  generator.set_state(torch::tensor(torch::ArrayRef<std::uint8_t>(state), torch::kUInt8));
}

std::vector<std::uint8_t> random_state() {
  const auto state = at::detail::getDefaultCPUGenerator().get_state();
  const auto* bytes = state.data_ptr<std::uint8_t>();
  return {bytes, bytes + state.numel()};
}

TrainingState catch_up(comm::Group group, const std::vector<bool>& behind, const TrainingState& own,
                       const task::ModelState& model, torch::optim::Optimizer& optimizer,
                       std::chrono::milliseconds timeout) {
  const torch::NoGradGuard no_grad;
  Slices slices(group, behind, timeout);
  const int root = slices.first_source();
  const auto origin = fmt::format("the training state that rank {} has sent", root);
  const bool follows = behind[static_cast<std::size_t>(group.rank())];
  auto learnt = learnt_by(optimizer, model);
  // Encoded like a checkpoint's files: data, in which nothing can be executed.
  const bool tells = group.rank() == root;
  const auto broadcast_text = [&](const std::string& mine) {
    return comm::broadcast_text(group, mine, root, Deadline::after(kFileTimeout));
  };
  const auto broadcast = [&](comm::Bytes mine) {
    return comm::broadcast_bytes(group, std::move(mine), root, Deadline::after(kFileTimeout));
  };
  const auto text = broadcast_text(tells ? state_text(own) : std::string());
  const auto feedback =
      broadcast(tells ? encode_safetensors(feedback_tensors(own)) : comm::Bytes());
  const auto small = broadcast(tells ? encode_safetensors(learnt.small) : comm::Bytes());
  const auto header = broadcast_text(tells ? header_of(learnt.large) : std::string());
  if (follows) learnt.large = room_for(header, learnt.large, origin);

  for (const auto& [name, tensor] : model.parameters) slices.exchange(tensor, false);
  for (const auto& [name, tensor] : model.buffers) slices.exchange(tensor, true);
  for (const auto& [name, tensor] : learnt.large) slices.exchange(tensor, false);
  slices.finish();
  TrainingState state = own;
  if (follows) {
    state = parse_state_text(text, origin);
    state.error_feedback = feedback_values(decode_safetensors(feedback, origin));
    learnt.small = decode_safetensors(small, origin);
    learnt.large.merge(learnt.small);
    optimizer.state() = optimizer_states(learnt.large, optimizer, model, origin);
  }
  group.barrier(Deadline::after(kFileTimeout)).wait();
  return state;
}

}  // namespace bimetal::checkpoint
