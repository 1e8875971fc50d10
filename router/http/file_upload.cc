#include "router/http/file_upload.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "absl/strings/numbers.h"
#include "common/types/text.h"
#include "router/errors.h"
#include "router/http/file_objects.h"
#include "router/utf8.h"

namespace flotilla::router {
namespace {

constexpr std::size_t kMaxFieldBytes = 256;
constexpr std::size_t kMaxFileNameBytes = 255;

// The client's name of a file as a label: at most 255 bytes of valid UTF-8, without control
// characters. No path is ever made of it.
std::string Label(std::string_view name) {
  std::string label = RepairUtf8(name.substr(0, kMaxFileNameBytes));
  for (char& c : label) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
  }
  return label;
}

}  // namespace

absl::Status UploadForm::Read(std::string_view piece) { return reader_.Read(piece); }

absl::Status UploadForm::OnPart(const MultipartPart& part) {
  in_file_ = part.name == "file";
  field_ = nullptr;
  if (in_file_) {
    if (file_ != nullptr) return InvalidField("file", "the form has two files");
    if (!part.is_file) return InvalidField("file", "'file' needs a file name");
    absl::StatusOr<std::unique_ptr<IncomingFile>> file = room_.BeginFile(tenant_);
    if (!file.ok()) return file.status();
    file_ = *std::move(file);
    file_name_ = Label(part.file_name);
    return absl::OkStatus();
  }
  if (part.name == "purpose") field_ = &purpose_;
  if (part.name == "expires_after[anchor]") field_ = &anchor_;
  if (part.name == "expires_after[seconds]") field_ = &seconds_;
  const std::string name = RepairUtf8(std::string_view(part.name).substr(0, 64));
  if (field_ == nullptr) {
    return WithField(InvalidArgument("the form has an unknown field '", name, "'"), name,
                     kUnknownField);
  }
  if (field_->has_value()) return InvalidField(name, Cat("the form has '", name, "' twice"));
  field_->emplace();
  return absl::OkStatus();
}

absl::Status UploadForm::OnData(std::string_view bytes) {
  if (in_file_) return file_->Write(bytes);
  if (bytes.size() > kMaxFieldBytes - (*field_)->size()) {
    return InvalidArgument("a field of the form is longer than ", kMaxFieldBytes, " bytes");
  }
  **field_ += bytes;
  return absl::OkStatus();
}

absl::Status UploadForm::OnPartEnd() { return absl::OkStatus(); }

absl::StatusOr<StoredFile> UploadForm::Finish() {
  if (absl::Status s = reader_.Finish(); !s.ok()) return s;
  if (file_ == nullptr) return InvalidField("file", "the form has no 'file'");
  if (!purpose_.has_value()) return InvalidField("purpose", "the form has no 'purpose'");
  if (*purpose_ != "batch") {
    return InvalidField("purpose", "'purpose' must be batch: files are for batches only");
  }
  std::int64_t life_s = 0;
  if (anchor_.has_value() || seconds_.has_value()) {
    if (!absl::SimpleAtoi(seconds_.value_or(""), &life_s)) life_s = 0;
    const absl::StatusOr<std::int64_t> checked =
        CheckLife("expires_after", anchor_.value_or(""), life_s);
    if (!checked.ok()) return checked.status();
  }
  return room_.AddFile(*file_, std::move(file_name_), life_s);
}

}  // namespace flotilla::router
