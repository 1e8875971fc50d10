#include "router/http/files_api.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "common/types/text.h"
#include "router/errors.h"
#include "router/files/file_io.h"
#include "router/files/files_service.h"
#include "router/http/api_error.h"
#include "router/http/file_objects.h"
#include "router/http/file_upload.h"
#include "router/http/pool_exchange.h"
#include "router/utf8.h"

namespace flotilla::router {

class IoDoor {
 public:
  explicit IoDoor(Dispatcher* dispatcher) : dispatcher_(dispatcher) {}
  void Post(std::function<void()> work) {
    absl::MutexLock lock(&mu_);
    if (dispatcher_ != nullptr) dispatcher_->Post(std::move(work));
  }
  void Close() {
    absl::MutexLock lock(&mu_);
    dispatcher_ = nullptr;
  }

 private:
  absl::Mutex mu_;
  Dispatcher* dispatcher_ ABSL_GUARDED_BY(mu_);  // null once closed
};

namespace {

constexpr char kJsonContent[] = "application/json";
// An upload passes on what has come when it is this much, so the disk has few, large writes.
constexpr std::size_t kPieceBytes = 64 << 10;
// Of what creates a batch. Its metadata take 108 KiB at most, however they are written.
constexpr std::size_t kMaxOrderBytes = 128 << 10;
// What the downloads of one I/O thread hold in memory, and each of them: the piece that is read and
// the one that is being sent.
constexpr std::size_t kContentBytes = 16u << 20, kDownloadBytes = 2 * kPieceBytes;
// The downloads of one client at a time on one I/O thread, if clients have keys.
constexpr std::size_t kTenantDownloads = 32;
// A page of batches ends early when it has this much: their metadata may be long.
constexpr std::size_t kListBytes = 512 << 10;

absl::Status Disabled() {
  return WithField(absl::FailedPreconditionError(
                       "this server keeps no files and runs no batches: its operator starts it "
                       "with --files-dir for that"),
                   "", kFilesDisabled);
}

HttpRefusal RefusalOf(const absl::Status& status) {
  return {
      .status = HttpStatusOf(status), .body = ErrorJson(status), .headers = ErrorHeaders(status)};
}

// The body of POST /v1/files: passes pieces to a form on the files thread, one at a time.
class FileUpload final : public HttpUpload {
 public:
  FileUpload(FilesService* service, FilesMetrics* metrics, std::shared_ptr<IoDoor> door,
             std::string tenant, std::string boundary)
      : service_(*service),
        metrics_(*metrics),
        door_(std::move(door)),
        state_(std::make_shared<State>(std::move(tenant), std::move(boundary))),
        self_(std::make_shared<FileUpload*>(this)) {}
  ~FileUpload() override {
    self_.reset();
    // The form belongs to the files thread.
    service_.Post([state = std::move(state_)](FilesRoom&) mutable { state.reset(); });
  }

  std::uint64_t max_bytes() const override { return service_.max_file_bytes() + kUploadFormBytes; }

  bool Take(std::string piece, HttpBodySource& source) override {
    waiting_ += piece;
    // The first piece goes at once, so that an upload that is refused holds no memory.
    if (begun_ && waiting_.size() < kPieceBytes) return true;
    begun_ = true;
    Pass([source = &source](FileUpload& upload, const absl::Status& status) {
      if (status.ok()) return source->ResumeBody();
      upload.metrics_.OnUploadRefused();
      source->RefuseBody(RefusalOf(status));
    });
    return false;
  }

  // The last piece has come: answers.
  void Finish(std::string piece, HttpReply& reply) {
    waiting_ += piece;
    auto file = std::make_shared<absl::StatusOr<StoredFile>>(absl::UnknownError(""));
    last_ = file;
    Pass([file, reply = &reply](FileUpload& upload, const absl::Status& status) {
      if (status.ok() && file->ok()) return reply->Send(200, kJsonContent, FileJson(**file), {});
      upload.metrics_.OnUploadRefused();
      SendError(status.ok() ? file->status() : status, *reply);
    });
  }

 private:
  // Of the files thread.
  struct State {
    State(std::string owner, std::string bound)
        : tenant(std::move(owner)), boundary(std::move(bound)) {}
    const std::string tenant, boundary;
    std::unique_ptr<UploadForm> form;
  };

  // The form reads what waits, and ends if it is the last piece. Then `done` runs here.
  void Pass(std::function<void(FileUpload&, const absl::Status&)> done) {
    service_.Post([state = state_, piece = std::exchange(waiting_, {}), last = last_,
                   metrics = &metrics_, door = door_, self = std::weak_ptr(self_),
                   done = std::move(done)](FilesRoom& room) mutable {
      if (self.expired()) return;
      if (state->form == nullptr) {
        state->form = std::make_unique<UploadForm>(&room, state->tenant, state->boundary);
      }
      metrics->OnUploaded(piece.size());
      const absl::Status status = OrNoMemory([&] { return state->form->Read(piece); });
      if (status.ok() && last != nullptr) {
        *last = OrNoMemory([&] { return state->form->Finish(); });
      }
      if (!status.ok() || last != nullptr) state->form.reset();
      door->Post([self, status, done = std::move(done)] {
        if (const auto upload = self.lock()) done(**upload, status);
      });
    });
  }

  FilesService& service_;
  FilesMetrics& metrics_;
  const std::shared_ptr<IoDoor> door_;
  std::shared_ptr<State> state_;
  std::shared_ptr<FileUpload*> self_;
  std::string waiting_;  // has come, and was not passed on
  bool begun_ = false;
  std::shared_ptr<absl::StatusOr<StoredFile>> last_;  // what becomes of the form; null: more comes
};

// Sends a file: reads a piece on the files thread when the one before was sent.
class Download final : public HttpExchange {
 public:
  Download(FilesService* service, std::shared_ptr<IoDoor> door, MemoryCharge charge,
           HttpReply& reply, std::function<void()> on_gone)
      : service_(*service),
        door_(std::move(door)),
        charge_(std::move(charge)),
        reply_(reply),
        on_gone_(std::move(on_gone)),
        self_(std::make_shared<Download*>(this)) {}
  ~Download() override {
    self_.reset();
    on_gone_();
  }

  void Open(std::string tenant, std::string id, bool head_only) {
    Read([tenant = std::move(tenant), id = std::move(id),
          head_only](FilesRoom& room) -> absl::StatusOr<std::shared_ptr<FileContent>> {
      absl::StatusOr<FileContent> content = room.OpenFile(tenant, id);
      if (!content.ok()) return content.status();
      auto opened = std::make_shared<FileContent>(*std::move(content));
      if (head_only) opened->bytes = 0;
      return opened;
    });
  }

  bool paced() const override { return true; }
  void OnSent() override {
    if (reading_ || content_ == nullptr) return;
    Read([content = content_](FilesRoom&) { return content; });
  }

 private:
  using Opened = absl::StatusOr<std::shared_ptr<FileContent>>;

  void Read(std::function<Opened(FilesRoom&)> open) {
    reading_ = true;
    service_.Post([open = std::move(open), at = at_, door = door_,
                   self = std::weak_ptr(self_)](FilesRoom& room) {
      if (self.expired()) return;
      const Opened content = open(room);
      absl::StatusOr<std::string> piece =
          content.ok() ? OrNoMemory([&] { return ReadPiece(**content, at); }) : content.status();
      door->Post([self, content, piece = std::move(piece)] {
        if (const auto download = self.lock()) (*download)->OnPiece(content, piece);
      });
    });
  }

  static absl::StatusOr<std::string> ReadPiece(const FileContent& content, std::uint64_t at) {
    std::string piece(std::min<std::uint64_t>(kPieceBytes, content.bytes - at), '\0');
    if (!ReadAt(content.fd.get(), at, piece)) {
      return absl::InternalError("the file cannot be read");
    }
    return piece;
  }

  void OnPiece(const Opened& content, const absl::StatusOr<std::string>& piece) {
    reading_ = false;
    if (!piece.ok()) return content_ == nullptr ? SendError(piece.status(), reply_) : reply_.Fail();
    if (content_ == nullptr) {
      content_ = *content;
      reply_.Begin(200, "application/octet-stream", {});
    }
    at_ += piece->size();
    reply_.Write(*piece);
    if (at_ == content_->bytes) reply_.End();
  }

  FilesService& service_;
  const std::shared_ptr<IoDoor> door_;
  const MemoryCharge charge_;
  HttpReply& reply_;
  const std::function<void()> on_gone_;
  std::shared_ptr<FileContent> content_;  // null: not yet opened
  std::uint64_t at_ = 0;                  // bytes read
  bool reading_ = false;
  std::shared_ptr<Download*> self_;
};

}  // namespace

FilesApi::FilesApi(FilesService* service, FilesMetrics* metrics, Dispatcher* dispatcher)
    : service_(service),
      metrics_(metrics),
      door_(std::make_shared<IoDoor>(dispatcher)),
      content_(kContentBytes) {}

FilesApi::~FilesApi() { door_->Close(); }

absl::StatusOr<std::unique_ptr<HttpUpload>> FilesApi::AdmitUpload(const std::string& tenant,
                                                                  std::string_view content_type) {
  if (service_ == nullptr) return Disabled();
  if (!IsValidUtf8(tenant)) return InvalidArgument("the name of the tenant is no UTF-8");
  absl::StatusOr<std::string> boundary = MultipartBoundary(content_type);
  if (!boundary.ok()) return boundary.status();
  return std::make_unique<FileUpload>(service_, metrics_, door_, tenant, *std::move(boundary));
}

FilesApi::Reply FilesApi::Ask(HttpReply& reply,
                              std::function<absl::StatusOr<std::string>(FilesRoom&)> work) {
  if (service_ == nullptr) {
    SendError(Disabled(), reply);
    return nullptr;
  }
  auto exchange = std::make_unique<PoolExchange>(reply);
  service_->Post([work = std::move(work), door = door_, self = exchange->self()](FilesRoom& room) {
    if (self.expired()) return;
    auto answer =
        std::make_shared<absl::StatusOr<std::string>>(OrNoMemory([&] { return work(room); }));
    door->Post([self, answer] {
      const std::shared_ptr<PoolExchange*> waiting = self.lock();
      if (waiting == nullptr) return;
      if (!answer->ok()) return SendError(answer->status(), (*waiting)->reply());
      (*waiting)->reply().Send(200, kJsonContent, **std::move(answer), {});
    });
  });
  return exchange;
}

FilesApi::Reply FilesApi::Upload(HttpRequest& request, const std::string&, HttpReply& reply) {
  if (request.upload == nullptr) {  // there is no body
    SendError(service_ == nullptr ? Disabled() : InvalidField("file", "the form has no 'file'"),
              reply);
    return nullptr;
  }
  std::unique_ptr<HttpUpload> upload = std::move(request.upload);
  static_cast<FileUpload&>(*upload).Finish(std::move(request.body), reply);
  return upload;
}

FilesApi::Reply FilesApi::ListFiles(HttpRequest& request, const std::string&, HttpReply& reply) {
  return Ask(reply,
             [tenant = request.tenant,
              query = request.query](FilesRoom& room) -> absl::StatusOr<std::string> {
               const absl::StatusOr<PageOrder> order = ParsePage(query, /*of_files=*/true);
               if (!order.ok()) return order.status();
               const absl::StatusOr<LedgerPage<StoredFile>> page = room.ListFiles(tenant, *order);
               if (!page.ok()) return page.status();
               std::vector<std::pair<std::string, std::string>> objects;
               for (const StoredFile* file : page->entries)
                 objects.emplace_back(file->id, FileJson(*file));
               return ListJson(objects, page->has_more);
             });
}

FilesApi::Reply FilesApi::GetFile(HttpRequest& request, const std::string& id, HttpReply& reply) {
  return Ask(reply, [tenant = request.tenant, id](FilesRoom& room) -> absl::StatusOr<std::string> {
    const absl::StatusOr<StoredFile> file = room.GetFile(tenant, id);
    if (!file.ok()) return file.status();
    return FileJson(*file);
  });
}

FilesApi::Reply FilesApi::DeleteFile(HttpRequest& request, const std::string& id,
                                     HttpReply& reply) {
  return Ask(reply, [tenant = request.tenant, id](FilesRoom& room) -> absl::StatusOr<std::string> {
    const absl::StatusOr<StoredFile> file = room.GetFile(tenant, id);
    if (!file.ok()) return file.status();
    if (absl::Status s = room.RemoveFile(tenant, id); !s.ok()) return s;
    return Cat(R"({"id":")", file->id, R"(","object":"file","deleted":true})");
  });
}

FilesApi::Reply FilesApi::GetContent(HttpRequest& request, const std::string& id,
                                     HttpReply& reply) {
  MemoryCharge charge(&content_);
  absl::Status refusal;
  const auto running = downloads_.find(request.tenant);
  if (service_ == nullptr) {
    refusal = Disabled();
  } else if (running != downloads_.end() && running->second >= kTenantDownloads) {
    refusal = WithRetryAfter(
        absl::ResourceExhaustedError(Cat(kTenantDownloads, " of your downloads are running")),
        1000);
  } else if (!charge.Grow(kDownloadBytes)) {
    refusal = NoMemory();
  }
  if (!refusal.ok()) {
    SendError(refusal, reply);
    return nullptr;
  }
  std::function<void()> on_gone = [] {};
  if (const std::string& tenant = request.tenant; !tenant.empty()) {
    ++downloads_[tenant];
    on_gone = [this, tenant] {
      if (--downloads_[tenant] == 0) downloads_.erase(tenant);
    };
  }
  auto download =
      std::make_unique<Download>(service_, door_, std::move(charge), reply, std::move(on_gone));
  download->Open(request.tenant, id, request.method == "HEAD");
  return download;
}

FilesApi::Reply FilesApi::CreateBatch(HttpRequest& request, const std::string&, HttpReply& reply) {
  if (service_ == nullptr) {
    SendError(Disabled(), reply);
    return nullptr;
  }
  // It is read here, so that nothing but its values waits for the thread of files.
  const auto order = OrNoMemory([&]() -> absl::StatusOr<BatchOrder> {
    if (request.body.size() > kMaxOrderBytes) {
      return absl::InvalidArgumentError(absl::StrCat("the body has ", request.body.size(),
                                                     " bytes, and that of a batch may have ",
                                                     kMaxOrderBytes));
    }
    return ParseBatchOrder(request.body);
  });
  if (!order.ok()) {
    SendError(order.status(), reply);
    return nullptr;
  }
  return Ask(
      reply,
      [tenant = request.tenant, order = *order](FilesRoom& room) -> absl::StatusOr<std::string> {
        const absl::StatusOr<StoredBatch> batch = room.AddBatch(tenant, order);
        if (!batch.ok()) return batch.status();
        return BatchJson(*batch);
      });
}

FilesApi::Reply FilesApi::ListBatches(HttpRequest& request, const std::string&, HttpReply& reply) {
  return Ask(reply,
             [tenant = request.tenant,
              query = request.query](FilesRoom& room) -> absl::StatusOr<std::string> {
               const absl::StatusOr<PageOrder> order = ParsePage(query, /*of_files=*/false);
               if (!order.ok()) return order.status();
               const auto page = room.ListBatches(tenant, *order);
               if (!page.ok()) return page.status();
               std::vector<std::pair<std::string, std::string>> objects;
               std::size_t bytes = 0;
               for (const StoredBatch& batch : page->first) {
                 if (bytes >= kListBytes) break;
                 objects.emplace_back(batch.id, BatchJson(batch));
                 bytes += objects.back().second.size();
               }
               return ListJson(objects, page->second || objects.size() < page->first.size());
             });
}

FilesApi::Reply FilesApi::GetBatch(HttpRequest& request, const std::string& id, HttpReply& reply) {
  return Ask(reply, [tenant = request.tenant, id](FilesRoom& room) -> absl::StatusOr<std::string> {
    const absl::StatusOr<StoredBatch> batch = room.GetBatch(tenant, id);
    if (!batch.ok()) return batch.status();
    return BatchJson(*batch);
  });
}

FilesApi::Reply FilesApi::CancelBatch(HttpRequest& request, const std::string& id,
                                      HttpReply& reply) {
  return Ask(reply, [tenant = request.tenant, id](FilesRoom& room) -> absl::StatusOr<std::string> {
    const absl::StatusOr<StoredBatch> batch = room.CancelBatch(tenant, id);
    if (!batch.ok()) return batch.status();
    return BatchJson(*batch);
  });
}

}  // namespace flotilla::router
