#pragma once
// The parts of the module bimetal._C. Each function adds its own to the module.

#include <torch/csrc/utils/pybind.h>

#include <memory>

#include "bimetal/c10d/backend.h"
#include "bimetal/comm/group.h"

namespace bimetal::python {

/// Errors of ours arrive in Python as instances of the class given to set_error_class().
void bind_errors(pybind11::module_& module);

/// Makes the interpreter know the threads of process groups.
void bind_threads();

/// Making process groups, and what torch's own classes do not show of them.
void bind_process_groups(pybind11::module_& module);

/// Balancer, EpochSampler.
void bind_balance(pybind11::module_& module);

/// TemporaryFolder, and what else files need to survive whatever ends a process or a machine.
void bind_files(pybind11::module_& module);

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

// From torch's process groups to the fabric's.

using BackendPtr = c10::intrusive_ptr<::c10d::Backend>;

/// Error(InvalidArgument) for a backend that is none of ours.
const comm::Group& group_of(const BackendPtr& backend);

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
