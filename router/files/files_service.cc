#include "router/files/files_service.h"

#include <optional>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "common/rt/task_thread.h"
#include "common/types/text.h"
#include "router/files/disk.h"
#include "router/files/file_store.h"
#include "router/http/api_handler.h"

namespace flotilla::router {
namespace {

class FilesServiceImpl final : public FilesService, private Dispatcher {
 public:
  FilesServiceImpl(FilesOptions options, const Parts& parts, std::unique_ptr<Disk> disk,
                   std::unique_ptr<FileStore> store)
      : max_file_bytes_(options.limits.file_bytes),
        disk_(std::move(disk)),
        store_(std::move(store)),
        io_loop_(parts.service->OpenIoLoop(this)),
        handler_(MakeApiHandler({.permissive = options.permissive}, parts.service, io_loop_.get())),
        room_({.store = store_.get(),
               .handler = handler_.get(),
               .clock = parts.clock,
               .now_s = std::move(options.now_s),
               .new_id = [this](std::string_view prefix) { return NewId(prefix); },
               .log = parts.log,
               .metrics = parts.metrics,
               .on_reply = [this] { StepSoon(); },
               .concurrency = options.concurrency}) {
    thread_.emplace();
    thread_->Post([this] { StepSoon(); });
  }
  ~FilesServiceImpl() override {
    StopBatches();
    thread_->Post([this] {
      handler_.reset();
      io_loop_.reset();  // nothing is posted to this dispatcher any more
    });
    thread_.reset();  // runs what was posted
  }

  void Post(std::function<void(FilesRoom&)> work) override {
    thread_->Post([this, work = std::move(work)] { work(room_); });
  }

  void StopBatches() override {
    absl::Notification stopped;
    thread_->Post([this, &stopped] {
      room_.Stop();
      stopped.Notify();
    });
    stopped.WaitForNotification();
  }

  std::uint64_t max_file_bytes() const override { return max_file_bytes_; }

 private:
  // Dispatcher: of the I/O loop that the requests of batches belong to.
  void Post(std::function<void()> work) override { thread_->Post(std::move(work)); }

  // The rest runs on the files thread. Many replies share one step, which runs behind them.
  void StepSoon() {
    if (std::exchange(step_posted_, true)) return;
    thread_->Post([this] { Step(); });
  }
  void Step() {
    step_posted_ = false;
    if (timer_.has_value()) thread_->Cancel(*std::exchange(timer_, std::nullopt));
    const std::int64_t rest_ns = room_.Step();
    if (rest_ns == 0) return StepSoon();
    timer_ = thread_->After(absl::Nanoseconds(rest_ns), [this] {
      timer_ = std::nullopt;
      Step();
    });
  }
  std::string NewId(std::string_view prefix) {
    std::string id(prefix);
    for (int i = 0; i < 4; ++i) absl::StrAppend(&id, absl::Hex(random_(), absl::kZeroPad8));
    return id;
  }

  const std::uint64_t max_file_bytes_;
  std::random_device random_;  // 32 bits a draw
  const std::unique_ptr<Disk> disk_;
  const std::unique_ptr<FileStore> store_;
  std::unique_ptr<IoLoop> io_loop_;
  std::unique_ptr<HttpHandler> handler_;
  FilesRoom room_;
  bool step_posted_ = false;
  std::optional<TaskThread::Timer> timer_;
  std::optional<TaskThread> thread_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<FilesService>> FilesService::Open(FilesOptions options,
                                                                 const Parts& parts) {
  auto disk = std::make_unique<Disk>();
  absl::StatusOr<std::unique_ptr<FileStore>> store =
      FileStore::Open(options.folder, options.limits, disk.get());
  if (!store.ok()) return store.status();
  return std::make_unique<FilesServiceImpl>(std::move(options), parts, std::move(disk),
                                            *std::move(store));
}

}  // namespace flotilla::router
