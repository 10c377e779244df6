
#include <filesystem>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "bimetal/base/error.h"
#include "bimetal/checkpoint/slices/save_slices.h"
#include "bimetal/checkpoint/slices/shared_reader.h"
#include "bimetal/python/bindings.h"

namespace bimetal::python {
namespace {

using Numbers = std::vector<std::int64_t>;
/// The tensor's name and shape, the slice's offset and size, its values.
using SliceTuple = std::tuple<std::string, Numbers, Numbers, Numbers, torch::Tensor>;

std::vector<checkpoint::OwnSlice> own_slices_of(const std::vector<SliceTuple>& tuples) {
  std::vector<checkpoint::OwnSlice> own;
  for (const auto& [name, shape, offset, size, values] : tuples) {
    const checkpoint::Slice slice{offset, size};
    const bool fits = checkpoint::lies_in(slice, shape) && slice.count() == values.numel();
    if (!fits) throw Error(ErrorCode::Internal, "no slice of '" + name + "' has that form");
    own.push_back({name, shape, slice, values.detach()});
  }
  return own;
}

std::string save_slices(const ProcessGroup& process_group, const std::string& target,
                        const std::vector<SliceTuple>& model,
                        const std::vector<SliceTuple>& optimizer, const std::string& kind,
                        const std::string& groups, const std::map<std::string, std::int64_t>& at,
                        const std::string& loop) {
  const auto number = [&](const char* name) {
    const auto found = at.find(name);
    return found == at.end() ? 0 : found->second;
  };
  checkpoint::Manifest facts;
  facts.state.step = number("step");
  facts.state.position.epoch = number("epoch");
  facts.state.position.offset = number("offset");
  facts.state.global_batch = number("global_batch");
  facts.optimizer = kind;
  facts.optimizer_groups = nlohmann::ordered_json::parse(groups);
  facts.loop = loop;
  const checkpoint::OwnSlices own{own_slices_of(model), own_slices_of(optimizer)};
  return checkpoint::save_slices_as(process_group.group, target, own, facts).string();
}

/// A SharedReader, for whose functions for reading a method stands while they are there.
class SavedSlices {
 public:
  SavedSlices(const ProcessGroup& process_group, const std::string& path) {
    const auto& group = process_group.group;
    std::optional<std::filesystem::path> first;
    if (group.rank() == 0) first = path;
    reader_.emplace(group, first);
  }

  const std::string& loop() const { return reader_->loop(); }
  const checkpoint::SliceIndex& index() const { return reader_->index(); }

  void each_takes(const std::function<void()>& take) {
    reader_->each_takes([&](const checkpoint::SharedReader::Read& read) {
      reading_ = &read;
      try {
        take();
      } catch (...) {
        reading_ = nullptr;
        throw;
      }
      reading_ = nullptr;
    });
  }

  torch::Tensor read(const std::string& part, const std::string& name, const Numbers& offset,
                     const Numbers& size) const {
    if (reading_ == nullptr) {
      throw Error(ErrorCode::InvalidArgument, "slices are read within each_takes() alone");
    }
    const bool of_model = part == "model";
    const auto& tensors = of_model ? index().model : index().optimizer;
    const auto found = tensors.find(name);
    const checkpoint::Slice wanted{offset, size};
    if (found == tensors.end() || !checkpoint::lies_in(wanted, found->second.shape)) {
      throw Error(ErrorCode::InvalidArgument, "the checkpoint has no such slice of '" + name + "'");
    }
    return (of_model ? reading_->model : reading_->optimizer)(name, wanted);
  }

 private:
  std::optional<checkpoint::SharedReader> reader_;
  const checkpoint::SharedReader::Read* reading_ = nullptr;
};

std::map<std::string, Numbers> shapes_in(const checkpoint::TensorIndex& index) {
  std::map<std::string, Numbers> shapes;
  for (const auto& [name, tensor] : index) shapes[name] = tensor.shape;
  return shapes;
}

}  // namespace

void bind_checkpoints(Bindings& bindings) {
  bindings.function("save_slices", save_slices);
  Bindings::Class<SavedSlices>(bindings, "SavedSlices")
      .made_of<const ProcessGroup&, const std::string&>()
      .property("loop", &SavedSlices::loop)
      .property("model", [](SavedSlices& saved) { return shapes_in(saved.index().model); })
      .property("optimizer", [](SavedSlices& saved) { return shapes_in(saved.index().optimizer); })
      .method("each_takes", &SavedSlices::each_takes)
      .method("read", &SavedSlices::read);
}

}  // namespace bimetal::python
