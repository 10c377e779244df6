// Fibers and virtual time in the place of the system's threads, mutexes, conditions and clocks.

#include <cxxabi.h>
#include <fmt/format.h>
#include <link.h>
#include <pthread.h>
#include <sys/mman.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <exception>
#include <map>
#include <unordered_map>
#include <utility>

#include "simulation/world.h"

namespace simulation {

/// Each thread has variables of its own: the program's, and the exceptions under way.
struct ThreadVariables {
  std::vector<std::byte> program;
  void* exceptions[2] = {};
};

struct Fiber {
  ucontext_t context = {};
  void* stack = nullptr;
  Process* process = nullptr;
  void* (*body)(void*) = nullptr;
  void* argument = nullptr;
  ThreadVariables variables;
  Waiters* waits_in = nullptr;
  std::uint64_t alarm = 0;
  Nanoseconds alarm_at = 0;
  bool timed_out = false;
  bool ended = false, detached = false;
  Waiters joiners;
};

namespace {

constexpr std::size_t kStackBytes = 128 * 1024, kStacksAtOnce = 256;

struct World {
  Links links;
  Nanoseconds now = 1'000'000'000;
  std::uint64_t last_event = 0;
  std::map<std::pair<Nanoseconds, std::uint64_t>, std::function<void()>> events;
  std::deque<Fiber*> ready;
  Fiber* running = nullptr;
  ucontext_t scheduler = {};
  ThreadVariables outside;
  std::vector<void*> stacks;
  std::vector<std::unique_ptr<Process>> processes;
  std::unordered_map<const void*, Waiters> waiting;  // by mutex or condition
};

World& world() {
  static auto* const the_only = new World;  // what runs at the program's end may still use it
  return *the_only;
}

// ---- variables of a thread
// ------------------------------------------------------------------------

struct ProgramVariables {
  void* place = nullptr;
  std::size_t size = 0;
  std::vector<std::byte> at_first;
};

const ProgramVariables& program_variables() {
  static const auto* const found = [] {
    auto* const result = new ProgramVariables;
    // The first object is the program itself.
    dl_iterate_phdr(
        [](dl_phdr_info* info, std::size_t, void* into) {
          auto& variables = *static_cast<ProgramVariables*>(into);
          for (int i = 0; i < info->dlpi_phnum; ++i) {
            const auto& header = info->dlpi_phdr[i];
            if (header.p_type != PT_TLS) continue;
            variables.place = info->dlpi_tls_data;
            variables.size = header.p_memsz;
            variables.at_first.resize(header.p_memsz);
            std::memcpy(variables.at_first.data(),
                        reinterpret_cast<const void*>(info->dlpi_addr + header.p_vaddr),
                        header.p_filesz);
          }
          return 1;
        },
        result);
    return result;
  }();
  return *found;
}

/// The pointer to the exceptions that are handled, and the number of those under way.
void** exceptions() {
  return reinterpret_cast<void**>(abi::__cxa_get_globals());
}

void swap_in(ThreadVariables& in, ThreadVariables& out) {
  const auto& program = program_variables();
  if (program.size > 0) {
    out.program.resize(program.size);
    std::memcpy(out.program.data(), program.place, program.size);
    const auto& bytes = in.program.empty() ? program.at_first : in.program;
    std::memcpy(program.place, bytes.data(), program.size);
  }
  std::copy_n(exceptions(), 2, out.exceptions);
  std::copy_n(in.exceptions, 2, exceptions());
}

// ---- fibers
// ---------------------------------------------------------------------------------------

void* take_stack() {
  auto& stacks = world().stacks;
  if (stacks.empty()) {
    void* const memory = ::mmap(nullptr, kStackBytes * kStacksAtOnce, PROT_READ | PROT_WRITE,
                                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) std::abort();
    for (std::size_t i = 0; i < kStacksAtOnce; ++i) {
      stacks.push_back(static_cast<std::byte*>(memory) + i * kStackBytes);
    }
  }
  void* const stack = stacks.back();
  stacks.pop_back();
  return stack;
}

void release(Fiber* fiber) {
  world().stacks.push_back(fiber->stack);
  delete fiber;
}

void make_ready(Fiber* fiber) {
  if (fiber->process->alive) world().ready.push_back(fiber);
}

void to_scheduler() {
  Fiber* const self = world().running;
  ::swapcontext(&self->context, &world().scheduler);
}

void begin_fiber() {
  Fiber* const self = world().running;
  self->body(self->argument);
  self->ended = true;
  wake_all(self->joiners);
  to_scheduler();
}

Fiber* new_fiber(Process* process, void* (*body)(void*), void* argument) {
  auto* const fiber = new Fiber;
  fiber->stack = take_stack();
  fiber->process = process;
  fiber->body = body;
  fiber->argument = argument;
  ::getcontext(&fiber->context);
  fiber->context.uc_stack.ss_sp = fiber->stack;
  fiber->context.uc_stack.ss_size = kStackBytes;
  fiber->context.uc_link = nullptr;
  ::makecontext(&fiber->context, begin_fiber, 0);
  make_ready(fiber);
  return fiber;
}

void switch_to(Fiber* fiber) {
  auto& all = world();
  all.running = fiber;
  swap_in(fiber->variables, all.outside);
  ::swapcontext(&all.scheduler, &fiber->context);
  swap_in(all.outside, fiber->variables);
  all.running = nullptr;
  if (fiber->ended && fiber->detached) release(fiber);
}

void leave_queue(Fiber* fiber) {
  auto& waiters = *fiber->waits_in;
  waiters.erase(std::find(waiters.begin(), waiters.end(), fiber));
  fiber->waits_in = nullptr;
}

void wake(Fiber* fiber) {
  fiber->waits_in = nullptr;
  if (fiber->alarm != 0) take_back(fiber->alarm_at, std::exchange(fiber->alarm, 0));
  make_ready(fiber);
}

void wake_one(Waiters& waiters) {
  if (waiters.empty()) return;
  Fiber* const first = waiters.front();
  waiters.erase(waiters.begin());
  wake(first);
}

Nanoseconds nanoseconds_of(const timespec& time) {
  return time.tv_sec * 1'000'000'000 + time.tv_nsec;
}

/// A lock that nobody else can want at the same moment, unless its holder waits for something.
int& held(pthread_mutex_t* mutex) {
  return mutex->__data.__lock;
}

void lock(pthread_mutex_t* mutex) {
  while (held(mutex) != 0) wait_in(world().waiting[mutex], -1);
  held(mutex) = 1;
}

void unlock(pthread_mutex_t* mutex) {
  held(mutex) = 0;
  const auto found = world().waiting.find(mutex);
  if (found == world().waiting.end()) return;
  wake_one(found->second);
  if (found->second.empty()) world().waiting.erase(found);
}

int wait_for(pthread_cond_t* condition, pthread_mutex_t* mutex, Nanoseconds until) {
  unlock(mutex);
  const bool woken = wait_in(world().waiting[condition], until);
  lock(mutex);
  return woken ? 0 : ETIMEDOUT;
}

void notify(pthread_cond_t* condition, void (*how)(Waiters&)) {
  const auto found = world().waiting.find(condition);
  if (found == world().waiting.end()) return;
  how(found->second);
  if (found->second.empty()) world().waiting.erase(found);
}

}  // namespace

// ---- the world
// ------------------------------------------------------------------------------------

std::string Process::host() const {
  return fmt::format("{}.{}.{}.{}", address >> 24, (address >> 16) & 255, (address >> 8) & 255,
                     address & 255);
}

Nanoseconds now() {
  return world().now;
}
const Links& links() {
  return world().links;
}
void set_links(const Links& links) {
  world().links = links;
}
Process* current_process() {
  return world().running ? world().running->process : nullptr;
}

std::uint64_t at(Nanoseconds when, std::function<void()> action) {
  const auto number = ++world().last_event;
  world().events.emplace(std::pair(std::max(when, now()), number), std::move(action));
  return number;
}

void take_back(Nanoseconds when, std::uint64_t number) {
  world().events.erase(std::pair(when, number));
}

bool wait_in(Waiters& waiters, Nanoseconds until) {
  Fiber* const self = world().running;
  if (self == nullptr) {
    std::fputs("the simulation waits outside of its processes\n", stderr);
    std::abort();
  }
  self->timed_out = false;
  self->waits_in = &waiters;
  waiters.push_back(self);
  if (until >= 0) {
    self->alarm_at = std::max(until, now());
    self->alarm = at(self->alarm_at, [self] {
      self->alarm = 0;
      self->timed_out = true;
      leave_queue(self);
      make_ready(self);
    });
  }
  to_scheduler();
  return !self->timed_out;
}

void wake_all(Waiters& waiters) {
  for (Fiber* const fiber : std::exchange(waiters, {})) wake(fiber);
}

Process& start(std::function<void()> main) {
  auto& processes = world().processes;
  processes.push_back(std::make_unique<Process>());
  Process& process = *processes.back();
  process.number = static_cast<int>(processes.size()) - 1;
  process.address = (10u << 24) + 1 + static_cast<std::uint32_t>(process.number);
  process.busy = true;
  using Start = std::pair<Process*, std::function<void()>>;
  new_fiber(
      &process,
      [](void* argument) -> void* {
        const std::unique_ptr<Start> start(static_cast<Start*>(argument));
        try {
          start->second();
        } catch (const std::exception& error) {
          start->first->error = error.what();
        }
        start->first->busy = false;
        return nullptr;
      },
      new Start(&process, std::move(main)))
      ->detached = true;
  return process;
}

void kill(Process& process) {
  process.alive = process.busy = false;
  close_all_of(process);
}

void switch_off(Process& process) {
  process.alive = process.busy = false;
  process.cut_off = true;
}

bool run_until(const std::function<bool()>& done) {
  auto& all = world();
  while (!done()) {
    if (!all.ready.empty()) {
      Fiber* const next = all.ready.front();
      all.ready.pop_front();
      if (next->process->alive) switch_to(next);
      continue;
    }
    if (all.events.empty()) return false;
    auto event = all.events.extract(all.events.begin());
    all.now = event.key().first;
    event.mapped()();
  }
  return true;
}

}  // namespace simulation

// ---- in the place of the system's functions
// -------------------------------------------------------

using namespace simulation;

extern "C" {

int pthread_create(pthread_t* thread, const pthread_attr_t*, void* (*body)(void*),
                   void* argument) noexcept {
  *thread = reinterpret_cast<pthread_t>(new_fiber(current_process(), body, argument));
  return 0;
}

int pthread_join(pthread_t thread, void**) {
  auto* const fiber = reinterpret_cast<Fiber*>(thread);
  while (!fiber->ended) wait_in(fiber->joiners, -1);
  release(fiber);
  return 0;
}

int pthread_detach(pthread_t thread) noexcept {
  auto* const fiber = reinterpret_cast<Fiber*>(thread);
  fiber->detached = true;
  if (fiber->ended) release(fiber);
  return 0;
}

pthread_t pthread_self() noexcept {
  return reinterpret_cast<pthread_t>(world().running);
}

int pthread_mutex_lock(pthread_mutex_t* mutex) noexcept {
  lock(mutex);
  return 0;
}
int pthread_mutex_trylock(pthread_mutex_t* mutex) noexcept {
  if (held(mutex) != 0) return EBUSY;
  held(mutex) = 1;
  return 0;
}
int pthread_mutex_unlock(pthread_mutex_t* mutex) noexcept {
  unlock(mutex);
  return 0;
}

int pthread_cond_wait(pthread_cond_t* condition, pthread_mutex_t* mutex) {
  return wait_for(condition, mutex, -1);
}
int pthread_cond_clockwait(pthread_cond_t* condition, pthread_mutex_t* mutex, clockid_t,
                           const timespec* until) {
  return wait_for(condition, mutex, nanoseconds_of(*until));
}
int pthread_cond_timedwait(pthread_cond_t* condition, pthread_mutex_t* mutex,
                           const timespec* until) {
  return wait_for(condition, mutex, nanoseconds_of(*until));
}
int pthread_cond_signal(pthread_cond_t* condition) noexcept {
  notify(condition, wake_one);
  return 0;
}
int pthread_cond_broadcast(pthread_cond_t* condition) noexcept {
  notify(condition, wake_all);
  return 0;
}
int pthread_cond_destroy(pthread_cond_t* condition) noexcept {
  world().waiting.erase(condition);
  return 0;
}

int clock_gettime(clockid_t, timespec* time) noexcept {
  *time = {now() / 1'000'000'000, now() % 1'000'000'000};
  return 0;
}

int nanosleep(const timespec* length, timespec*) {
  Waiters nobody;
  wait_in(nobody, now() + nanoseconds_of(*length));
  return 0;
}

int sched_yield() noexcept {
  const timespec none = {};
  return nanosleep(&none, nullptr);
}
}
