// FilesApi: the routes of files and batches. The work is done on the files thread
// (router/files/files_service.h), and answers come back to the I/O thread that this object lives
// on. There is one for each handler.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "router/http/exchange.h"
#include "router/http/memory_budget.h"
#include "router/service.h"

namespace flotilla::router {

class FilesMetrics;
class FilesRoom;
class FilesService;

// Runs work on an I/O thread, as long as its dispatcher is open. Any thread.
class IoDoor;

class FilesApi {
 public:
  // `service` is null: each route answers FAILED_PRECONDITION with kFilesDisabled. `dispatcher` is
  // that of the I/O thread, and may be null without a service. Both outlive this object. `metrics`
  // counts refused uploads; the same.
  FilesApi(FilesService* service, FilesMetrics* metrics, Dispatcher* dispatcher);
  // After it nothing is posted to the dispatcher.
  ~FilesApi();

  // What takes the body of an upload. The error is the refusal.
  absl::StatusOr<std::unique_ptr<HttpUpload>> AdmitUpload(const std::string& tenant,
                                                          std::string_view content_type);

  // Each answers one route. `id` is the {id} of the path.
  using Reply = std::unique_ptr<HttpExchange>;
  Reply Upload(HttpRequest& request, const std::string& id, HttpReply& reply);
  Reply ListFiles(HttpRequest& request, const std::string& id, HttpReply& reply);
  Reply GetFile(HttpRequest& request, const std::string& id, HttpReply& reply);
  Reply DeleteFile(HttpRequest& request, const std::string& id, HttpReply& reply);
  Reply GetContent(HttpRequest& request, const std::string& id, HttpReply& reply);
  Reply CreateBatch(HttpRequest& request, const std::string& id, HttpReply& reply);
  Reply ListBatches(HttpRequest& request, const std::string& id, HttpReply& reply);
  Reply GetBatch(HttpRequest& request, const std::string& id, HttpReply& reply);
  Reply CancelBatch(HttpRequest& request, const std::string& id, HttpReply& reply);

 private:
  // Answers with the JSON that `work` makes on the files thread.
  Reply Ask(HttpReply& reply, std::function<absl::StatusOr<std::string>(FilesRoom& room)> work);

  FilesService* const service_;
  FilesMetrics* const metrics_;
  const std::shared_ptr<IoDoor> door_;
  MemoryBudget content_;
  absl::flat_hash_map<std::string, std::size_t> downloads_;  // that are running, by tenant
};

}  // namespace flotilla::router
