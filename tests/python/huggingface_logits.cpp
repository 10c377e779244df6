// The values that test_huggingface.py compares transformers with: the logits of a Hugging Face
// folder's model for some tokens, and the folder that we write of it.
//
//   huggingface_logits FOLDER TOKENS.safetensors LOGITS.safetensors WRITTEN_FOLDER

#include <torch/csrc/api/include/torch/types.h>
#include <torch/csrc/api/include/torch/utils.h>

#include <cstdio>
#include <exception>

#include "bimetal/checkpoint/huggingface.h"
#include "bimetal/checkpoint/model_file.h"
#include "bimetal/checkpoint/safetensors.h"

namespace checkpoint = bimetal::checkpoint;

int main(int argc, char** argv) {
  if (argc != 5) return 2;
  try {
    const auto config = checkpoint::read_huggingface_config(argv[1]);
    const auto model =
        checkpoint::make_described_model({.name = config.family, .language = config});
    checkpoint::load_huggingface(model, argv[1]);
    const torch::NoGradGuard no_grad;
    const auto tokens = checkpoint::read_safetensors(argv[2]).at("tokens");
    const auto logits = bimetal::task::run_units(model, {tokens}).at(0);
    checkpoint::write_safetensors(argv[3], {{"logits", logits}});
    checkpoint::save_huggingface(model, config, argv[4]);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
