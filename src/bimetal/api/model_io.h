#pragma once
// A model's parameters and buffers as a safetensors file.

#include <torch/csrc/api/include/torch/nn/pimpl.h>

#include <filesystem>

#include "bimetal/checkpoint/model_file.h"
#include "bimetal/task/model_state.h"

namespace bimetal {

/// Under their libtorch names, or those of a task's model (DataParallel::model); `path` holds the
/// old or the new model, never a part. Errors of train::save_model.
template <typename Contained>
void save(const torch::nn::ModuleHolder<Contained>& model, const std::filesystem::path& path) {
  checkpoint::save_model(*model, path);
}
inline void save(const task::ModelState& model, const std::filesystem::path& path) {
  checkpoint::save_model(model, path);
}

/// The way back, into a model of the same shape. Nothing changes unless all fits. Errors of
/// train::load_model.
template <typename Contained>
void load(torch::nn::ModuleHolder<Contained>& model, const std::filesystem::path& path) {
  checkpoint::load_model(*model, path);
}
inline void load(const task::ModelState& model, const std::filesystem::path& path) {
  checkpoint::load_model(model, path);
}

}  // namespace bimetal
