#pragma once
// An accelerator without hardware, whose queue moves only when the test says so: for code that must
// wait for a device's events. It has a stream and events, no memory and no kernels.

#include <c10/core/Event.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <atomic>

namespace bimetal::testing {

class ManualDevice {
 public:
  static constexpr auto type = c10::DeviceType::PrivateUse1;

  /// Marks the present end of the queue.
  static c10::Event record() {
    install();
    c10::Event event(type);
    event.record(c10::Stream(c10::Stream::DEFAULT, c10::Device(type, 0)));
    return event;
  }

  /// Runs everything queued so far: all events recorded until now have been passed.
  static void run_queue() { passed() = recorded().load(); }

 private:
  // An event's place in the queue is stored in its handle.
  struct Guard : c10::impl::NoOpDeviceGuardImpl<type> {
    void record(void** event, const c10::Stream&, c10::DeviceIndex, c10::EventFlag) const override {
      *event = reinterpret_cast<void*>(++recorded());
    }
    bool queryEvent(void* event) const override {
      return reinterpret_cast<std::uintptr_t>(event) <= passed();
    }
  };

  static void install() {
    static const Guard guard;
    static const c10::impl::DeviceGuardImplRegistrar registrar(type, &guard);
  }
  static std::atomic<std::uintptr_t>& recorded() {
    static std::atomic<std::uintptr_t> count = 0;
    return count;
  }
  static std::atomic<std::uintptr_t>& passed() {
    static std::atomic<std::uintptr_t> count = 0;
    return count;
  }
};

}  // namespace bimetal::testing
