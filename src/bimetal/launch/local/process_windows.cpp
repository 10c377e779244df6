#include <fmt/format.h>
#include <io.h>
#include <windows.h>

#include <algorithm>
#include <array>
#include <map>
#include <thread>

#include "bimetal/base/error.h"
#include "bimetal/base/unicode/utf8.h"
#include "bimetal/launch/local/process.h"
#include "bimetal/launch/system/environment.h"

namespace bimetal::launch {
namespace {

using Handle = std::shared_ptr<void>;

/// The status with which this program ends others: an error, of none of Windows' kinds, and the
/// signal that it stands for.
constexpr DWORD kEndedBySignal = 0xe0b10000, kSignalMask = 0xff;
/// Milliseconds for a process that has been ended, which a driver may still hold.
constexpr DWORD kToBeGone = 10'000;

Handle owned(HANDLE handle) {
  return Handle(handle, [](HANDLE last) {
    if (last != nullptr && last != INVALID_HANDLE_VALUE) CloseHandle(last);
  });
}

/// A group of processes that ends with the last handle of it, which is ours.
Handle new_job() {
  const auto job = owned(CreateJobObjectW(nullptr, nullptr));
  JOBOBJECT_EXTENDED_LIMIT_INFORMATION limits{};
  limits.BasicLimitInformation.LimitFlags = JOB_OBJECT_LIMIT_KILL_ON_JOB_CLOSE;
  if (!job || !SetInformationJobObject(job.get(), JobObjectExtendedLimitInformation, &limits,
                                       sizeof(limits))) {
    throw windows_error("cannot make a job object", GetLastError());
  }
  return job;
}

/// NAME=VALUE, each ended by a zero, and one more. Names differ by more than their case, and are in
/// the order that Windows wants.
std::wstring environment_block(const NamedValues& added) {
  const auto before = [](const std::wstring& a, const std::wstring& b) {
    return CompareStringOrdinal(a.c_str(), -1, b.c_str(), -1, TRUE) == CSTR_LESS_THAN;
  };
  std::map<std::wstring, std::wstring, decltype(before)> variables(before);
  for (const auto& values : {own_environment(), added}) {
    for (const auto& [name, value] : values) variables[wide_of_utf8(name)] = wide_of_utf8(value);
  }
  std::wstring block;
  for (const auto& [name, value] : variables) block += name + L'=' + value + L'\0';
  return block + L'\0';
}

/// The handles that a new process inherits: its own for standard input, output and errors. It
/// inherits nothing else of ours, even if another thread starts a process meanwhile.
class InheritedHandles {
 public:
  explicit InheritedHandles(const std::vector<std::pair<int, int>>& descriptors) {
    SECURITY_ATTRIBUTES inherited{sizeof(inherited), nullptr, TRUE};
    standard_[0] = owned(CreateFileW(L"NUL", GENERIC_READ, FILE_SHARE_READ | FILE_SHARE_WRITE,
                                     &inherited, OPEN_EXISTING, 0, nullptr));
    for (const int number : {1, 2}) standard_[number] = copy_of(number);
    for (const auto& [child, ours] : descriptors) {
      standard_[static_cast<std::size_t>(child)] = copy_of(ours);
    }
    for (const auto& handle : standard_) {
      if (handle) all_.push_back(handle.get());
    }
  }

  HANDLE standard(std::size_t number) const { return standard_[number].get(); }
  std::vector<HANDLE>& all() noexcept { return all_; }

 private:
  static Handle copy_of(int descriptor) {
    const auto found = _get_osfhandle(descriptor);
    if (found == -1 || found == -2)
      return nullptr;  // none, which other calls take for this process
    const auto handle = reinterpret_cast<HANDLE>(found);
    HANDLE copy = nullptr;
    DuplicateHandle(GetCurrentProcess(), handle, GetCurrentProcess(), &copy, 0, TRUE,
                    DUPLICATE_SAME_ACCESS);
    return copy ? owned(copy) : nullptr;  // none where this process has none either
  }

  std::array<Handle, 3> standard_;
  std::vector<HANDLE> all_;
};

/// The job in which a process begins, and the handles that it inherits.
class StartAttributes {
 public:
  StartAttributes(InheritedHandles& handles, const Handle& job) : job_(job.get()) {
    SIZE_T size = 0;
    InitializeProcThreadAttributeList(nullptr, 2, 0, &size);
    memory_.resize(size);
    info_.lpAttributeList = reinterpret_cast<LPPROC_THREAD_ATTRIBUTE_LIST>(memory_.data());
    if (!InitializeProcThreadAttributeList(info_.lpAttributeList, 2, 0, &size)) refused();
    set(PROC_THREAD_ATTRIBUTE_JOB_LIST, &job_, sizeof(job_));
    set(PROC_THREAD_ATTRIBUTE_HANDLE_LIST, handles.all().data(),
        handles.all().size() * sizeof(HANDLE));
    info_.StartupInfo.cb = sizeof(info_);
    info_.StartupInfo.dwFlags = STARTF_USESTDHANDLES;
    info_.StartupInfo.hStdInput = handles.standard(0);
    info_.StartupInfo.hStdOutput = handles.standard(1);
    info_.StartupInfo.hStdError = handles.standard(2);
  }
  ~StartAttributes() { DeleteProcThreadAttributeList(info_.lpAttributeList); }

  STARTUPINFOW* get() noexcept { return &info_.StartupInfo; }

 private:
  /// Outside of the job nothing would end it with its launcher.
  void set(DWORD_PTR what, void* value, SIZE_T size) {
    if (!UpdateProcThreadAttribute(info_.lpAttributeList, 0, what, value, size, nullptr, nullptr)) {
      refused();
    }
  }
  [[noreturn]] static void refused() {
    throw windows_error("cannot say how a process is to start", GetLastError());
  }

  HANDLE job_;
  std::vector<char> memory_;
  STARTUPINFOEXW info_{};
};

ProcessExit exit_of(DWORD code) {
  if ((code & ~kSignalMask) == kEndedBySignal) return {0, static_cast<int>(code & kSignalMask)};
  switch (code) {
    case STATUS_CONTROL_C_EXIT: return {0, SIGINT};
    case STATUS_ACCESS_VIOLATION:
    case STATUS_STACK_OVERFLOW: return {0, SIGSEGV};
    case STATUS_ILLEGAL_INSTRUCTION: return {0, SIGILL};
    case STATUS_INTEGER_DIVIDE_BY_ZERO: return {0, SIGFPE};
    default: return {static_cast<int>(code), 0};
  }
}

BOOL WINAPI swallow_console_event(DWORD) {
  return TRUE;
}

/// Sends Ctrl-C to all processes in the console of `pid`. This process has to be one of them
/// meanwhile.
void send_ctrl_c(int pid) {
  FreeConsole();
  if (!AttachConsole(static_cast<DWORD>(pid))) return;
  SetConsoleCtrlHandler(swallow_console_event, FALSE);
  SetConsoleCtrlHandler(swallow_console_event, TRUE);  // the last one is asked first
  GenerateConsoleCtrlEvent(CTRL_C_EVENT, 0);
  // The console may end with that process, and would end this one, too.
  FreeConsole();
}

}  // namespace

Process Process::start(const ProcessCommand& command) {
  InheritedHandles handles(command.descriptors);
  const auto job = new_job();
  StartAttributes attributes(handles, job);
  auto line = command_line_of(command.argv);
  auto environment = environment_block(command.environment);
  PROCESS_INFORMATION started{};
  constexpr DWORD kHow =
      CREATE_NO_WINDOW | CREATE_UNICODE_ENVIRONMENT | EXTENDED_STARTUPINFO_PRESENT;
  if (!CreateProcessW(wide_of_utf8(command.argv.at(0)).c_str(), line.data(), nullptr, nullptr, TRUE,
                      kHow, environment.data(), nullptr, attributes.get(), &started)) {
    throw windows_error(fmt::format("cannot start {}", command.argv[0]), GetLastError());
  }
  CloseHandle(started.hThread);
  Process process(static_cast<int>(started.dwProcessId));
  process.process_ = owned(started.hProcess);
  process.job_ = job;
  return process;
}

Process::~Process() {
  kill_and_reap();
}

Process::Process(Process&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)),
      process_(std::move(other.process_)),
      job_(std::move(other.job_)),
      exit_(other.exit_) {}

Process& Process::operator=(Process&& other) noexcept {
  std::swap(pid_, other.pid_);
  std::swap(process_, other.process_);
  std::swap(job_, other.job_);
  std::swap(exit_, other.exit_);
  return *this;
}

std::optional<ProcessExit> Process::poll() {
  if (exit_ || pid_ < 0) return exit_;
  if (WaitForSingleObject(process_.get(), 0) != WAIT_OBJECT_0) return std::nullopt;
  TerminateJobObject(job_.get(), kEndedBySignal + kKillSignal);
  DWORD code = 0;
  GetExitCodeProcess(process_.get(), &code);
  exit_ = exit_of(code);
  return exit_;
}

void Process::send(int signal) {
  send_to_group(signal);
}

void Process::send_to_group(int signal) {
  if (pid_ < 0 || exit_) return;
  if (signal == SIGINT) return send_ctrl_c(pid_);
  TerminateJobObject(job_.get(), kEndedBySignal + static_cast<DWORD>(signal));
}

void Process::kill_and_reap() noexcept {
  if (pid_ < 0 || exit_) return;
  TerminateJobObject(job_.get(), kEndedBySignal + kKillSignal);
  WaitForSingleObject(process_.get(), kToBeGone);
}

std::filesystem::path own_program() {
  std::wstring path(32768, L'\0');  // no path is longer
  path.resize(GetModuleFileNameW(nullptr, path.data(), static_cast<DWORD>(path.size())));
  return path;
}

std::string signal_name(int signal) {
  static const std::map<int, std::string> names = {
      {SIGINT, "Ctrl-C"},      {SIGILL, "Illegal instruction"}, {SIGFPE, "Arithmetic error"},
      {kKillSignal, "Killed"}, {SIGSEGV, "Access violation"},   {SIGTERM, "Terminated"}};
  const auto found = names.find(signal);
  return found == names.end() ? "unknown" : found->second;
}

void end_with_process(int pid) {
  constexpr UINT kStatus = 1;
  const HANDLE process = OpenProcess(SYNCHRONIZE, FALSE, static_cast<DWORD>(pid));
  if (process == nullptr) {
    throw windows_error(fmt::format("cannot watch process {}", pid), GetLastError());
  }
  std::thread([process] {
    WaitForSingleObject(process, INFINITE);
    // Nothing of ours is waited for: the job objects close, and the processes in them end.
    TerminateProcess(GetCurrentProcess(), kStatus);
  }).detach();
}

}  // namespace bimetal::launch
