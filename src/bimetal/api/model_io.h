#pragma once
// A model's parameters and buffers as a safetensors file.

#include <torch/csrc/api/include/torch/nn/module.h>
#include <torch/csrc/api/include/torch/nn/pimpl.h>

#include <filesystem>

#include "bimetal/train/model_file.h"

namespace bimetal {

/// Under their libtorch names; `path` holds the old or the new model, never a part. Errors of
/// train::save_model.
template <typename Contained>
void save(const torch::nn::ModuleHolder<Contained>& model, const std::filesystem::path& path) {
  train::save_model(*model, path);
}
inline void save(const torch::nn::Module& model, const std::filesystem::path& path) {
  train::save_model(model, path);
}

/// The way back, into a model of the same shape. Nothing changes unless all fits. Errors of
/// train::load_model.
template <typename Contained>
void load(torch::nn::ModuleHolder<Contained>& model, const std::filesystem::path& path) {
  train::load_model(*model, path);
}
inline void load(torch::nn::Module& model, const std::filesystem::path& path) {
  train::load_model(model, path);
}

}  // namespace bimetal
