#pragma once
// A model's parameters and buffers as a safetensors file.

#include <torch/csrc/api/include/torch/nn/pimpl.h>

#include <filesystem>

#include "bimetal/task/model_state.h"

namespace bimetal {

/// Under their libtorch names, or those of a task's model (DataParallel::model); `path` holds the
/// old or the new model, never a part. Errors of checkpoint::save_model.
void save(const task::ModelState& model, const std::filesystem::path& path);
/// The same of a module.
template <typename Contained>
void save(const torch::nn::ModuleHolder<Contained>& model, const std::filesystem::path& path) {
  save(task::ModelState(*model), path);
}

/// The way back, into a model of the same shape. Nothing changes unless all fits. Errors of
/// checkpoint::load_model.
void load(const task::ModelState& model, const std::filesystem::path& path);
/// The same of a module.
template <typename Contained>
void load(torch::nn::ModuleHolder<Contained>& model, const std::filesystem::path& path) {
  load(task::ModelState(*model), path);
}

}  // namespace bimetal
