#include "support/simulated_graph.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <limits>
#include <utility>

namespace bimetal::testing {
namespace {

struct Recorded {
  std::mutex mutex;
  std::vector<std::pair<c10::StreamId, std::shared_ptr<SimulatedGraph>>> graphs;
};

Recorded& under_way() {
  static auto& only = *new Recorded;
  return only;
}

void put(const at::Tensor& into, const at::Tensor& from) {
  const c10::impl::ExcludeDispatchKeyGuard plain(c10::autograd_dispatch_keyset);
  if (into.numel() > 0) on_cpu(into).copy_(on_cpu(from));
}

}  // namespace

SimulatedGraph* SimulatedGraph::on(c10::StreamId stream) {
  const std::scoped_lock lock(under_way().mutex);
  const auto found =
      std::ranges::find(under_way().graphs, stream,
                        &std::pair<c10::StreamId, std::shared_ptr<SimulatedGraph>>::first);
  return found == under_way().graphs.end() ? nullptr : found->second.get();
}

void SimulatedGraph::begin(std::shared_ptr<SimulatedGraph> graph) {
  TORCH_CHECK(graph->stream_ != 0, "graphs must be captured on a non-default stream");
  const std::scoped_lock lock(under_way().mutex);
  under_way().graphs.emplace_back(graph->stream_, std::move(graph));
}

void SimulatedGraph::end(const SimulatedGraph& graph) {
  const std::scoped_lock lock(under_way().mutex);
  std::erase_if(under_way().graphs, [&](const auto& one) { return one.second.get() == &graph; });
}

void SimulatedGraph::refuse(const char* what) {
  TORCH_CHECK(false, what, " is not permitted when the stream is capturing");
  std::abort();
}

void SimulatedGraph::add(std::function<std::vector<at::Tensor>()> run,
                         const std::vector<at::Tensor>& made,
                         const std::vector<at::Tensor>& changed,
                         const std::vector<at::Tensor>& before) {
  for (std::size_t i = 0; i < changed.size(); ++i) {
    // What it has been made larger for it had nothing in.
    if (changed[i].defined() && changed[i].sizes() == before[i].sizes()) put(changed[i], before[i]);
  }
  std::vector<at::Tensor> kept;
  for (const auto& one : made) {
    const bool own = one.defined() && std::ranges::none_of(changed, [&](const at::Tensor& other) {
                       return other.defined() && other.is_alias_of(one);
                     });
    kept.push_back(own ? memory_of(one) : at::Tensor());
    if (own && one.is_floating_point() && one.numel() > 0) {
      const c10::impl::ExcludeDispatchKeyGuard plain(c10::autograd_dispatch_keyset);
      on_cpu(one).fill_(std::numeric_limits<double>::quiet_NaN());
    }
  }
  kernels_.push_back([run = std::move(run), kept] {
    const auto now = run();
    for (std::size_t i = 0; i < kept.size(); ++i) {
      if (kept[i].defined()) put(kept[i], now[i]);
    }
  });
}

void SimulatedGraph::replay() const {
  const c10::impl::ExcludeDispatchKeyGuard plain(c10::autograd_dispatch_keyset);
  const at::NoGradGuard no_grad;
  for (const auto& kernel : kernels_) kernel();
}

at::Tensor on_cpu(const at::Tensor& tensor) {
  if (tensor.is_cpu()) return tensor;
  return at::from_blob(
      tensor.data_ptr(), tensor.sizes(), tensor.strides(), [tensor](void*) {},
      tensor.options().device(c10::kCPU).requires_grad(false));
}

at::Tensor memory_of(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.variable_data() : tensor;
}

std::vector<at::Tensor> tensors_in(const std::vector<c10::IValue>& values) {
  std::vector<at::Tensor> all;
  for (const auto& value : values) {
    if (value.isTensor()) all.push_back(value.toTensor());
    if (value.isTensorList()) {
      for (const auto& one : value.toTensorVector()) all.push_back(one);
    }
  }
  return all;
}

std::vector<at::Tensor> changed_by(const c10::OperatorHandle& op,
                                   const std::vector<c10::IValue>& arguments) {
  const auto& schema = op.schema().arguments();
  // An operation in place comes as one whose output is an input, too.
  const auto is_input = [&](const c10::IValue& out) {
    if (!out.isTensor() || !out.toTensor().defined()) return false;
    for (std::size_t i = 0; i < schema.size(); ++i) {
      if (schema[i].is_out() || !arguments[i].isTensor()) continue;
      const auto& given = arguments[i].toTensor();
      if (given.defined() && given.is_alias_of(out.toTensor())) return true;
    }
    return false;
  };
  std::vector<c10::IValue> written;
  for (std::size_t i = 0; i < schema.size(); ++i) {
    const auto* const alias = schema[i].alias_info();
    if (alias == nullptr || !alias->isWrite()) continue;
    const bool only_made = schema[i].is_out() && !is_input(arguments[i]);  // had nothing in it
    if (!only_made) written.push_back(arguments[i]);
  }
  return tensors_in(written);
}

std::vector<c10::IValue> memory_of(const std::vector<c10::IValue>& values) {
  std::vector<c10::IValue> all;
  for (const auto& value : values) {
    if (value.isTensor()) {
      all.emplace_back(memory_of(value.toTensor()));
    } else if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const auto& one : value.toTensorVector()) list.push_back(memory_of(one));
      all.emplace_back(list);
    } else if (value.isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> list;
      for (const auto& one : value.toOptionalTensorVector()) {
        list.push_back(one ? std::optional(memory_of(*one)) : std::nullopt);
      }
      all.emplace_back(list);
    } else {
      all.push_back(value);
    }
  }
  return all;
}

}  // namespace bimetal::testing
