#include "bimetal/train/served_setup.h"

#include <c10/util/StringUtil.h>
#include <fmt/format.h>
#include <torch/torch.h>

#include <algorithm>
#include <span>
#include <utility>

#include "bimetal/base/error.h"
#include "bimetal/data/bootstrap.h"
#include "bimetal/data/content.h"
#include "bimetal/parallel/data/module_state.h"
#include "bimetal/train/optimizers.h"
#include "bimetal/train/same_job.h"

namespace bimetal::train {
namespace {

std::string digest_of_tensor(const torch::Tensor& tensor) {
  const auto whole = tensor.contiguous();
  const std::span bytes(static_cast<const std::byte*>(whole.const_data_ptr()), whole.nbytes());
  return data::hex(data::digest_of(bytes), 16);
}

std::string data_fact(const char* name, const data::ImageDataset& set) {
  return fmt::format("{} data = {} samples, digests {} {}", name, set.size(),
                     digest_of_tensor(set.images), digest_of_tensor(set.labels));
}

}  // namespace

data::TrainTest load_served_data(const Job& job, const data::DatasetFiles& files) {
  auto data = data::load_dataset(files);
  if (const auto seed = job.data.bootstrap_seed) data.train = data::bootstrap(data.train, seed);
  return data;
}

parallel::server::Credentials credentials_of(const ServedNetwork& network) {
  return {network.token, network.encryption, network.job_id};
}

parallel::server::ShardPlan plan_of_model(const Job& job, const torch::nn::Module& model) {
  const auto state = parallel::module_state(model);
  if (!state.buffers.empty()) {
    throw Error(ErrorCode::Unsupported,
                fmt::format("the model has the buffer '{}' (a running mean or the like), which "
                            "parameter servers do not keep; take parallel.mode = \"all_reduce\"",
                            state.buffers.front().name));
  }
  std::vector<std::int64_t> sizes;
  for (const auto& [name, tensor] : state.parameters) sizes.push_back(tensor.numel());
  const bool whole = needs_whole_tensors(job.train) || job.parallel.compression == "powersgd";
  if (!whole || sizes.empty()) {
    return parallel::server::plan_shards(sizes, job.parallel.servers);
  }
  const auto largest = std::max(std::ranges::max(sizes), std::int64_t{1});
  return parallel::server::plan_shards(sizes, job.parallel.servers, largest);
}

std::vector<std::string> served_facts(const Job& job, const data::TrainTest& data,
                                      const torch::nn::Module& model) {
  std::vector<std::string> facts;
  for (const auto& [name, value] : facts_of(job)) {
    facts.push_back(fmt::format("{} = {}", name, value));
  }
  facts.push_back(data_fact("training", data.train));
  facts.push_back(data_fact("test", data.test));
  for (const auto& [name, tensor] : parallel::module_state(model).parameters) {
    facts.push_back(c10::str(name, " ", tensor.sizes(), " ", tensor.scalar_type()));
  }
  return facts;
}

}  // namespace bimetal::train
