// UploadForm: the form of POST /v1/files as it comes. Its file goes to the disk piece by piece.
// Lives on the files thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "router/files/files_room.h"
#include "router/http/multipart.h"

namespace flotilla::router {

// What a form may have besides the bytes of its file: its other fields, headers and boundaries.
inline constexpr std::uint64_t kUploadFormBytes = 64 << 10;

class UploadForm final : private MultipartSink {
 public:
  // The room outlives it.
  UploadForm(FilesRoom* room, std::string tenant, std::string_view boundary)
      : room_(*room), tenant_(std::move(tenant)), reader_(boundary, {}, this) {}

  // Takes the next bytes. Errors: those of MultipartReader and IncomingFile, and INVALID_ARGUMENT
  // that names a field.
  absl::Status Read(std::string_view piece);
  // The form has ended. The file is on the disk when it returns. Errors: the same.
  absl::StatusOr<StoredFile> Finish();

 private:
  absl::Status OnPart(const MultipartPart& part) override;
  absl::Status OnData(std::string_view bytes) override;
  absl::Status OnPartEnd() override;

  FilesRoom& room_;
  const std::string tenant_;
  MultipartReader reader_;
  std::unique_ptr<IncomingFile> file_;
  std::string file_name_;
  bool in_file_ = false;                         // the part that comes is the file
  std::optional<std::string>* field_ = nullptr;  // else the field that it is
  std::optional<std::string> purpose_, anchor_, seconds_;
};

}  // namespace flotilla::router
