#pragma once
// The parts of the module bimetal._C. Each function adds its own to the module.

#include <torch/csrc/utils/pybind.h>

#include <chrono>
#include <memory>

#include "bimetal/comm/group.h"

namespace bimetal::python {

/// Errors of ours arrive in Python as instances of the class given to set_error_class().
void bind_errors(pybind11::module_& module);

/// ProcessGroup.
void bind_process_groups(pybind11::module_& module);

/// Checkpoints in slices: save_slices, SavedSlices.
void bind_checkpoints(pybind11::module_& module);

/// DeepSpeedConfig.
void bind_deepspeed(pybind11::module_& module);

/// HookedModel, and by what shards can be weighed.
void bind_sharding(pybind11::module_& module);

/// LoopStage, and where to cut a model into stages.
void bind_pipeline(pybind11::module_& module);

/// PartRanks, TensorCuts, and how whole pieces are dealt out.
void bind_tensor(pybind11::module_& module);

/// CoreOptimizer.
void bind_optimizers(pybind11::module_& module);

/// PredictionClient.
void bind_serving(pybind11::module_& module);

/// LoopMonitor.
void bind_monitor(pybind11::module_& module);

/// A process group that the package's Python side has made by the C interface, which is in this
/// module, too: a copy shares its connections.
struct ProcessGroup {
  comm::Group group;
  std::chrono::milliseconds timeout;  ///< of one call
};

// How objects end that wait for other ranks meanwhile.

/// For what others, who may need the interpreter's lock for their own end, are waited for.
struct EndWithoutLock {
  template <class Object>
  void operator()(Object* object) const {
    const pybind11::gil_scoped_release unlocked;
    delete object;
  }
};

template <class Object>
using EndsWithoutLock = std::unique_ptr<Object, EndWithoutLock>;

}  // namespace bimetal::python
