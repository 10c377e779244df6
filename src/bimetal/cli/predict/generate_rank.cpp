#include <fmt/format.h>

#include <memory>
#include <optional>
#include <utility>

#include "bimetal/base/error.h"
#include "bimetal/base/wire_fields.h"
#include "bimetal/cli/predict/mesh_of_use.h"
#include "bimetal/cli/predict/text_codec.h"
#include "bimetal/cli/rank/rank.h"
#include "bimetal/cli/terminal.h"
#include "bimetal/comm/exchange.h"
#include "bimetal/device/device.h"
#include "bimetal/job/worker_spec.h"
#include "bimetal/predict/mesh/model_in_parts.h"
#include "bimetal/train/replicas.h"

namespace bimetal::cli {
namespace {

/// Rank 0's input, which all ranks go on from.
struct WantedText {
  std::vector<std::int64_t> prompt;
  predict::Sampling sampling;
};

template <typename Wire>
void fields(Wire& wire, WantedText& wanted) {
  auto& sampling = wanted.sampling;
  wire(sampling.tokens, sampling.temperature, sampling.top_k, sampling.seed, wanted.prompt);
}

struct TextRank {
  job::JobConfig job;
  job::WorkerSpec worker;
  torch::Device device{torch::kCPU};
  std::chrono::milliseconds timeout{};
};

predict::ModelInParts load_part(const parallel::Mesh& mesh, const TextRank& rank,
                                const std::string& run) {
  StatusLine status;
  if (mesh.world().rank() == 0) status.show("loading the model …");
  return predict::load_in_parts(
      mesh, run,
      {.cuts = rank.job.mesh.cuts,
       .tensor_weights = train::part_weights(rank.job.mesh, mesh.shape(), {}),
       .device = rank.device,
       .timeout = rank.timeout});
}

/// On rank 0; nothing elsewhere.
struct Written {
  Written(const TextWish& wish, std::int64_t vocabulary, bool as_json)
      : codec(wish.tokenizer.empty() ? tokenizer_of(wish.run, vocabulary) : wish.tokenizer,
              vocabulary),
        text(wish.prompt, codec, as_json) {}

  const TextCodec codec;
  ShownText text;
};

int write_text(const comm::Group& group, const TextRank& rank, const RankRequest& request) {
  const auto& wish = request.text;
  const parallel::Mesh mesh(group, train::shape_of(rank.job.mesh, group.size()));
  auto model = load_part(mesh, rank, wish.run);
  const auto& language = *model.description.language;
  // A user at a terminal sees which rank has what. Standard output is for the text.
  if (group.rank() == 0 && errors_are_live()) print_to_errors(model.picture);
  std::optional<Written> written;
  comm::Bytes wanted_here;
  if (group.rank() == 0) {
    written.emplace(wish, language.vocabulary, request.json);
    wanted_here = write_fields(WantedText{written->text.prompt(), wish.sampling});
  }
  const auto wanted = read_fields<WantedText>(
      comm::broadcast_bytes(group, std::move(wanted_here), 0, Deadline::after(rank.timeout)));
  const auto by = predict::foretold_in_parts(mesh, std::move(model.part),
                                             {.vocabulary = language.vocabulary,
                                              .device = rank.device,
                                              .speed = rank.worker.speed,
                                              .timeout = rank.timeout});
  predict::generate(by, language.context, wanted.prompt, wanted.sampling, [&](std::int64_t token) {
    if (written) written->text.add({token});
  });
  if (written) written->text.finish();
  return kSuccess;
}

}  // namespace

int generate_as_rank(const launch::RankEnvironment& env, const RankRequest& request) {
  auto job = request.job;
  job.mesh = mesh_of_text(std::move(job.mesh), env.world_size);
  const auto worker = worker_of_use(job::parse_worker_spec(request.worker));
  const auto group = join_group(env, job);
  return in_company(group, [&] {
    device::apply_worker_limits(worker, env.local_world_size);
    return write_text(group,
                      {.job = job,
                       .worker = worker,
                       .device = device::select_device(worker, env.local_rank),
                       .timeout = milliseconds_of(job.parallel.timeout_s)},
                      request);
  });
}

}  // namespace bimetal::cli
