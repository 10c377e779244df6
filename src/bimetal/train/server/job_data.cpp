#include "bimetal/train/server/job_data.h"

#include <fmt/format.h>

#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "bimetal/base/deadline.h"
#include "bimetal/base/error.h"
#include "bimetal/data/transfer/cache.h"
#include "bimetal/data/transfer/data_copies.h"
#include "bimetal/data/transfer/data_link.h"
#include "bimetal/data/transfer/shared_data.h"
#include "bimetal/progress/together.h"
#include "bimetal/task/catalog/job_task.h"

namespace bimetal::train {
namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds;

/// All that the receiving needs: it is shared with a thread that may be left behind.
struct Receiving {
  Receiving(const job::JobConfig& job, const TrainerOptions& options, const Error& missing,
            const net::Endpoint& at, parallel::server::Credentials credentials)
      : config(job.data),
        own{.host = options.host_name, .code = missing.code(), .missing = missing.what()},
        at(at),
        credentials(std::move(credentials)),
        timeout(milliseconds_of(job.parallel.timeout_s)) {}

  fs::path receive(progress::Meter& meter);
  std::optional<std::string> take_note() {
    const std::scoped_lock lock(mutex);
    return std::exchange(note, std::nullopt);
  }

  const job::DataConfig config;
  const data::Copy own;
  const net::Endpoint at;
  const parallel::server::Credentials credentials;
  const milliseconds timeout;
  const data::Cache cache;
  fs::path folder;  ///< in the end

 private:
  data::Delivery ask(data::DataClient& client) const;
  void have_it_sent(const data::Delivery& delivery, progress::Meter& meter);
  std::string sender() const { return fmt::format("server 0 ({})", net::to_string(at)); }

  std::mutex mutex;
  std::optional<std::string> note;
};

data::Delivery Receiving::ask(data::DataClient& client) const {
  client.connect(at, credentials);
  return data::delivery_of(client.ask(own), config.name, &cache, own.host);
}

fs::path Receiving::receive(progress::Meter& meter) {
  data::CacheLock turn(cache, "sent-" + config.name, timeout, meter);
  data::Delivery delivery;
  {
    data::DataClient client(sender(), timeout, meter);
    delivery = ask(client);
  }
  // Reading the files there may take long, and nobody would listen to the sender meanwhile.
  if (!data::in_cache(delivery, meter)) have_it_sent(delivery, meter);
  turn.mark_done();
  return delivery.target;
}

void Receiving::have_it_sent(const data::Delivery& delivery, progress::Meter& meter) {
  std::uint64_t bytes = 0;
  for (const auto& file : delivery.files) bytes += file.size;
  if (const auto why_not = data::too_large(config, bytes))
    throw data::not_sent(own.host, *why_not, own.missing);
  data::DataClient client(sender(), timeout, meter);
  ask(client);
  {
    const std::scoped_lock lock(mutex);
    note = data::sending_note(own.host, own.missing, sender(), bytes);
  }
  data::keep_delivery(delivery, meter,
                      [&](const fs::path& into) { client.receive(delivery.files, into); });
}

/// Tells the receiving thread's notes.
class Receiver final : public progress::Observer {
 public:
  Receiver(std::shared_ptr<Receiving> receiving, progress::Observer& observer)
      : receiving_(std::move(receiving)), observer_(observer) {}

  void on_data(const progress::DataProgress& progress) override {
    tell_note();
    observer_.on_data(progress);
  }
  void tell_note() {
    if (const auto note = receiving_->take_note()) observer_.on_notice(*note);
  }

 private:
  const std::shared_ptr<Receiving> receiving_;
  progress::Observer& observer_;
};

/// An error on the way to the sender names the sender.
Error with_context(const Error& error, const std::string& host) {
  if (error.code() != ErrorCode::PeerLost && error.code() != ErrorCode::Timeout) return error;
  return {error.code(),
          fmt::format("{} has no copy of the data set, and the sending of one has failed: {}", host,
                      error.what())};
}

data::DatasetFiles receive_data(comm::Group alone, std::shared_ptr<Receiving> receiving,
                                const TrainerOptions& options, progress::Observer& observer) {
  Receiver receiver(receiving, observer);
  const progress::Task task = [receiving](progress::Meter& meter) {
    receiving->folder = receiving->receive(meter);
  };
  try {
    progress::run_together(
        std::move(alone), task,
        {"receiving the data", receiving->timeout, options.interrupt_requested, {}}, receiver);
  } catch (const progress::Interrupted&) {
    throw;
  } catch (const Error& error) {
    receiver.tell_note();
    throw with_context(error, options.host_name);
  }
  receiver.tell_note();
  return data::find_dataset(receiving->config.name, receiving->folder);
}

}  // namespace

data::DatasetFiles find_job_data(comm::Group alone, const job::JobConfig& job,
                                 const TrainerOptions& options, const DataSender& sender,
                                 progress::Observer& observer) {
  observer.on_phase("loading data");
  if (task::is_python_task(job)) return {};
  std::optional<Error> missing;
  try {
    return data::share_dataset(alone, job.data,
                               {.host_name = options.host_name,
                                .fetch = options.fetch,
                                .timeout = milliseconds_of(job.parallel.timeout_s),
                                .interrupt_requested = options.interrupt_requested},
                               observer);
  } catch (const progress::Interrupted&) {
    throw;
  } catch (const Error& error) {
    if (!sender.directory) throw;
    missing = error;
  }
  if (const auto why_not = data::forbidden(job.data)) {
    throw data::not_sent(options.host_name, *why_not, missing->what());
  }
  const auto at = sender.directory->find_data();
  if (!at) {
    throw data::not_sent(options.host_name, "server 0, which would send it, has none either",
                         missing->what());
  }
  return receive_data(std::move(alone),
                      std::make_shared<Receiving>(job, options, *missing, *at, sender.credentials),
                      options, observer);
}

}  // namespace bimetal::train
