// transformers' own classes, with our parameters under our names, give our logits. Needs the Python
// packages transformers and safetensors, as scripts/setup.sh installs them.

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <torch/csrc/api/include/torch/types.h>
#include <torch/csrc/api/include/torch/utils.h>

#include <cstdlib>
#include <string>

#include "bimetal/checkpoint/safetensors.h"
#include "bimetal/models/language/language_model.h"
#include "support/project_python.h"
#include "support/temporary_folder.h"

namespace bimetal::checkpoint {
namespace {

// Tokens and parameters lie in files; logits go into another. strict: no name may be missing or
// left over, but for the head that transformers ties by itself.
constexpr auto kScript = R"(
import torch, transformers
from safetensors.torch import load_file, save_file
family, tied, sizes = {}
torch.manual_seed(0)
if family == 'gpt2':
    config = transformers.GPT2Config(n_layer=sizes['layers'], n_embd=sizes['width'],
        n_head=sizes['heads'], n_inner=sizes['hidden'], n_positions=sizes['context'],
        vocab_size=sizes['vocabulary'])
    model = transformers.GPT2LMHeadModel(config)
else:
    config = transformers.LlamaConfig(num_hidden_layers=sizes['layers'],
        hidden_size=sizes['width'], num_attention_heads=sizes['heads'],
        num_key_value_heads=sizes['kv_heads'], intermediate_size=sizes['hidden'],
        max_position_embeddings=sizes['context'], vocab_size=sizes['vocabulary'],
        rms_norm_eps=1e-5, rope_theta=10000.0, tie_word_embeddings=tied)
    model = transformers.LlamaForCausalLM(config)
model.eval()
parameters = load_file('parameters')
tokens = parameters.pop('tokens')
missing, unexpected = model.load_state_dict(parameters, strict=False)
assert not unexpected, unexpected
assert missing == (['lm_head.weight'] if tied else []), missing
model.tie_weights()
with torch.no_grad():
    save_file(dict(logits=model(tokens).logits), 'logits')
)";

class Transformers : public ::testing::TestWithParam<std::tuple<std::string, bool>> {
 protected:
  void SetUp() override {
    if (python_.empty()) GTEST_SKIP() << "the Python package transformers is not installed";
  }
  const std::string python_ = test::python_with("transformers, safetensors");
  const test::TemporaryFolder folder_;
};

/// Enough blocks and positions that an error in any of them would show.
models::LanguageModelConfig config_of(const std::string& name, bool tied) {
  auto config = models::resized(models::language_preset(name), {.layers = 3,
                                                                .width = 48,
                                                                .heads = 6,
                                                                .kv_heads = name == "gpt2" ? 6 : 2,
                                                                .hidden = 80,
                                                                .context = 40,
                                                                .vocabulary = 99});
  config.tied = tied;
  return config;
}

TEST_P(Transformers, GivesTheSameLogits) {
  const auto& [name, tied] = GetParam();
  const auto config = config_of(name, tied);
  torch::manual_seed(2);
  const auto model = models::make_language_model(config);
  TensorMap stored = {{"tokens", torch::randint(config.vocabulary, {3, 37})}};
  {
    const torch::NoGradGuard no_grad;
    for (auto [parameter, tensor] : model.named_parameters()) {
      tensor.add_(torch::randn_like(tensor), 0.2);  // biases and normalisations, too
      stored.emplace(parameter, tensor);
    }
  }
  write_safetensors(folder_ / "parameters", stored);
  const auto sizes = fmt::format(
      "'{}', {}, dict(layers={}, width={}, heads={}, kv_heads={}, hidden={}, context={}, "
      "vocabulary={})",
      config.family, tied ? "True" : "False", config.layers, config.width, config.heads,
      config.kv_heads, config.hidden, config.context, config.vocabulary);
  auto script = std::string(kScript);
  script.replace(script.find("{}"), 2, sizes);
  test::put_contents(folder_ / "script.py", script);
  const auto command = fmt::format("cd {} && {} script.py", folder_.path().string(), python_);
  ASSERT_EQ(std::system(command.c_str()), 0);

  const torch::NoGradGuard no_grad;
  model.eval();
  const auto ours = task::run_units(model, {stored.at("tokens")}).front();
  const auto theirs = read_safetensors(folder_ / "logits").at("logits");
  ASSERT_EQ(ours.sizes(), theirs.sizes());
  const auto scale = theirs.abs().max().item<double>();
  EXPECT_LE((ours - theirs).abs().max().item<double>(), 1e-5 * scale);
  EXPECT_GT(theirs.std().item<double>(), 0.1 * scale / 5) << "logits that tell nothing";
}

INSTANTIATE_TEST_SUITE_P(Models, Transformers,
                         ::testing::Values(std::tuple("gpt2", true), std::tuple("llama", false),
                                           std::tuple("llama", true)),
                         [](const auto& param) {
                           return std::get<0>(param.param) +
                                  (std::get<1>(param.param) ? "Tied" : "Untied");
                         });

}  // namespace
}  // namespace bimetal::checkpoint
