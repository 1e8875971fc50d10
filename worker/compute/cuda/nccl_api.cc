#include "worker/compute/cuda/nccl_api.h"

#include <dlfcn.h>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace flotilla::worker {
namespace {

std::string VersionName(int version) {
  return absl::StrCat(version / 10000, ".", version / 100 % 100, ".", version % 100);
}

// `function` becomes the library's function of this name, whose arguments are the same.
template <class Result, class... Args>
bool Find(void* library, const char* name, std::function<Result(Args...)>& function) {
  void* const found = dlsym(library, name);
  if (found != nullptr) function = reinterpret_cast<Result (*)(Args...)>(found);
  return found != nullptr;
}

}  // namespace

absl::Status CheckNccl(NcclApi& api) {
  int version = 0;
  const int result = api.get_version(&version);
  if (result != NcclApi::kSuccess) {
    return absl::FailedPreconditionError(
        absl::StrCat("NCCL does not say its version: ", api.get_error_string(result)));
  }
  // Versions before 2.9 count otherwise, and are below this too.
  if (version < NcclApi::kOldestVersion) {
    return absl::FailedPreconditionError(absl::StrCat(
        "NCCL ", version < 10000 ? "before 2.9" : VersionName(version),
        " is too old; flotilla needs ", VersionName(NcclApi::kOldestVersion), " or later"));
  }
  api.version = VersionName(version);
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<const NcclApi>> OpenNccl(const std::string& path) {
  // It is never closed: NCCL has threads that outlive its communicators.
  void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* const why = dlerror();
    return absl::NotFoundError(
        absl::StrCat("NCCL cannot be opened: ", why == nullptr ? path : why));
  }
  const auto api = std::make_shared<NcclApi>();
  const char* missing = nullptr;
  const auto find = [&](const char* name, auto& function) {
    if (!Find(library, name, function) && missing == nullptr) missing = name;
  };
  find("ncclGetVersion", api->get_version);
  find("ncclGetErrorString", api->get_error_string);
  find("ncclGetLastError", api->get_last_error);
  find("ncclGetUniqueId", api->get_unique_id);
  find("ncclCommInitRankConfig", api->comm_init_rank_config);
  find("ncclCommGetAsyncError", api->comm_get_async_error);
  find("ncclCommAbort", api->comm_abort);
  find("ncclGroupStart", api->group_start);
  find("ncclGroupEnd", api->group_end);
  find("ncclSend", api->send);
  find("ncclRecv", api->recv);
  if (missing != nullptr) {
    return absl::NotFoundError(absl::StrCat("NCCL in ", path, " has no function ", missing));
  }
  if (const absl::Status status = CheckNccl(*api); !status.ok()) return status;
  return api;
}

}  // namespace flotilla::worker
