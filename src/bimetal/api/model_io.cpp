#include "bimetal/api/task.h"
#include "bimetal/checkpoint/model_file.h"

namespace bimetal {

void save(const task::ModelState& model, const std::filesystem::path& path) {
  checkpoint::save_model(model, path);
}

void load(const task::ModelState& model, const std::filesystem::path& path) {
  checkpoint::load_model(model, path);
}

}  // namespace bimetal
