#pragma once
// The library's functions for Python beside the core's C interface. Python has it as the module
// bimetal._C (python/bimetal/_C.py), by two functions: one tells the names, one calls by number.

#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "bimetal/comm/group.h"
#include "bimetal/python/convert.h"

namespace bimetal::python {

/// A process group that the package's Python side has made by the C interface, which is in this
/// library, too: a copy shares its connections.
struct ProcessGroup {
  comm::Group group;
  std::chrono::milliseconds timeout;  ///< of one call
};

/// Whether others may run Python meanwhile: those calls alone keep the lock that take no longer
/// than letting it go.
enum class Lock { let_go, kept };

/// Everything that can be called, by its number.
class Bindings {
 public:
  /// `object`: the object of a method call.
  using Call = std::function<Object(PyObject* object, PyObject* arguments)>;
  struct Named {
    std::string name;
    Call call;
  };

  template <class Function>
  void function(const std::string& name, const Function& function, Lock lock = Lock::let_go) {
    all_.push_back({name, of_arguments(std::function(function), lock)});
  }

  const std::vector<Named>& all() const { return all_; }

  /// Methods and properties of a class; its name stands before theirs.
  template <class T>
  class Class {
   public:
    Class(Bindings& bindings, std::string name) : bindings_(bindings), name_(std::move(name)) {}

    /// By a function that returns a std::unique_ptr.
    template <class Function>
    Class& made_by(const Function& function) {
      bindings_.all_.push_back({name_ + "()", maker(std::function(function))});
      return *this;
    }
    /// By its constructor.
    template <class... Arguments>
    Class& made_of() {
      return made_by(std::function<std::unique_ptr<T>(Arguments...)>([](Arguments... arguments) {
        return std::make_unique<T>(std::forward<Arguments>(arguments)...);
      }));
    }
    /// A member of T, or a function of T& and the arguments.
    template <class Function>
    Class& method(const std::string& name, const Function& function, Lock lock = Lock::let_go) {
      bindings_.all_.push_back({name_ + "." + name, of_object(as_function(function), lock)});
      return *this;
    }
    template <class Function>
    Class& property(const std::string& name, const Function& function) {
      return method("=" + name, function, Lock::kept);
    }

   private:
    template <class Result, class... Arguments>
    static std::function<Result(T&, Arguments...)> of_member(Result (T::*member)(Arguments...)) {
      return std::mem_fn(member);
    }
    template <class Result, class... Arguments>
    static std::function<Result(T&, Arguments...)> of_member(Result (T::*member)(Arguments...)
                                                                 const) {
      return std::mem_fn(member);
    }
    template <class Function>
    static auto as_function(const Function& function) {
      if constexpr (std::is_member_function_pointer_v<Function>) {
        return of_member(function);
      } else {
        return std::function(function);
      }
    }

    Bindings& bindings_;
    std::string name_;
  };

 private:
  /// A function's parameters as types that Convert knows.
  template <class T>
  using Bare = std::remove_cvref_t<T>;

  template <class Result, class Run>
  static Object result_of(Lock lock, const Run& run) {
    if constexpr (std::is_void_v<Result>) {
      if (lock == Lock::let_go) {
        const Unlocked unlocked;
        run();
      } else {
        run();
      }
      return none();
    } else {
      const auto result = [&]() -> Bare<Result> {
        if (lock == Lock::kept) return run();
        const Unlocked unlocked;
        return run();
      }();
      return to_python(result);
    }
  }

  template <class Result, class... Parameters>
  static Call of_arguments(std::function<Result(Parameters...)> function, Lock lock) {
    return [function = std::move(function), lock](PyObject* /*object*/, PyObject* arguments) {
      auto given = items_as<Bare<Parameters>...>(arguments);
      return result_of<Result>(lock, [&] { return std::apply(function, std::move(given)); });
    };
  }

  template <class T, class Result, class... Parameters>
  static Call of_object(std::function<Result(T, Parameters...)> function, Lock lock) {
    return [function = std::move(function), lock](PyObject* object, PyObject* arguments) {
      auto& self = in_capsule<Bare<T>>(object);
      auto given = items_as<Bare<Parameters>...>(arguments);
      return result_of<Result>(lock, [&] {
        const auto called = [&](auto&&... each) {
          return function(self, std::forward<decltype(each)>(each)...);
        };
        return std::apply(called, std::move(given));
      });
    };
  }

  template <class T, class... Parameters>
  static Call maker(std::function<std::unique_ptr<T>(Parameters...)> function) {
    return [function = std::move(function)](PyObject* /*object*/, PyObject* arguments) {
      auto given = items_as<Bare<Parameters>...>(arguments);
      auto made = [&] {
        const Unlocked unlocked;
        return std::apply(function, std::move(given));
      }();
      return capsule(std::move(made));
    };
  }

  std::vector<Named> all_;
};

/// Checkpoints in slices: save_slices, SavedSlices.
void bind_checkpoints(Bindings& bindings);

/// DeepSpeedConfig.
void bind_deepspeed(Bindings& bindings);

/// HookedModel, and by what shards can be weighed.
void bind_sharding(Bindings& bindings);

/// LoopStage, and where to cut a model into stages.
void bind_pipeline(Bindings& bindings);

/// PartRanks, TensorCuts, and how whole pieces are dealt out.
void bind_tensor(Bindings& bindings);

/// CoreOptimizer.
void bind_optimizers(Bindings& bindings);

/// PredictionClient.
void bind_serving(Bindings& bindings);

/// LoopMonitor.
void bind_monitor(Bindings& bindings);

/// The whole program, for jobs whose task is written in Python.
void bind_program(Bindings& bindings);

}  // namespace bimetal::python
