#include "model/gguf/gguf_writer.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>

#include "common/rt/write_to_file.h"
#include "common/types/text.h"

namespace flotilla::model {
namespace {

constexpr uint32_t kVersion = 3;

template <typename T>
void Put(std::vector<std::byte>& out, T value) {
  const auto* const bytes = reinterpret_cast<const std::byte*>(&value);
  out.insert(out.end(), bytes, bytes + sizeof value);
}

void PutText(std::vector<std::byte>& out, std::string_view text) {
  Put<uint64_t>(out, text.size());
  const auto* const bytes = reinterpret_cast<const std::byte*>(text.data());
  out.insert(out.end(), bytes, bytes + text.size());
}

absl::Status Failed(std::string_view what, const std::string& path) {
  return absl::ErrnoToStatus(errno, Cat("cannot ", what, " ", path));
}

absl::Status CheckAbsent(const std::string& path) {
  struct stat info;
  if (lstat(path.c_str(), &info) != 0) return absl::OkStatus();
  return absl::AlreadyExistsError(Cat(path, " exists; move it away, or choose another name"));
}

}  // namespace

GgufMetadata::GgufMetadata(const GgufFile& file)
    : alignment_(
          file.GetUintOr("general.alignment", kDefaultAlignment).value_or(kDefaultAlignment)) {
  std::vector<std::pair<std::string_view, const GgufValue*>> values;
  for (const auto& [key, value] : file.values()) values.emplace_back(key, &value);
  // Keys point into the file, so this is its order.
  std::ranges::sort(values, {}, [](const auto& entry) { return entry.first.data(); });
  for (const auto& [key, value] : values) {
    // The key's length is in front of it.
    const auto* const begin = reinterpret_cast<const std::byte*>(key.data()) - sizeof(uint64_t);
    const std::byte* const end = value->bytes.data() + value->bytes.size();
    entries_.emplace_back(std::string(key), std::vector<std::byte>(begin, end));
  }
}

void GgufMetadata::SetUint32(std::string_view key, uint32_t value) {
  std::vector<std::byte> bytes;
  PutText(bytes, key);
  Put(bytes, static_cast<uint32_t>(GgufType::kUint32));
  Put(bytes, value);
  const auto found = std::ranges::find(
      entries_, key, [](const auto& entry) { return std::string_view(entry.first); });
  if (found != entries_.end()) {
    found->second = std::move(bytes);
  } else {
    entries_.emplace_back(std::string(key), std::move(bytes));
  }
}

std::vector<std::byte> GgufMetadata::Bytes() const {
  std::vector<std::byte> bytes;
  for (const auto& [key, entry] : entries_) bytes.insert(bytes.end(), entry.begin(), entry.end());
  return bytes;
}

uint64_t GgufWriter::Tensor::elements() const {
  uint64_t count = 1;
  for (const uint64_t dim : dims) count *= dim;
  return count;
}

uint64_t GgufWriter::Tensor::bytes() const {
  const GgmlTypeInfo& info = InfoOf(type);
  return elements() / info.block_elements * info.block_bytes;
}

absl::StatusOr<std::unique_ptr<GgufWriter>> GgufWriter::Create(const std::string& path,
                                                               const GgufMetadata& metadata,
                                                               const std::vector<Tensor>& tensors) {
  absl::Status status = CheckAbsent(path);
  if (!status.ok()) return status;
  const std::string unfinished = path + ".unfinished";
  const int file = open(unfinished.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (file < 0) return Failed("create", unfinished);
  std::unique_ptr<GgufWriter> writer(new GgufWriter(path, file, metadata.alignment()));
  std::vector<std::byte> header;
  for (const char letter : std::string_view("GGUF")) Put(header, letter);
  Put(header, kVersion);
  Put<uint64_t>(header, tensors.size());
  Put(header, metadata.count());
  const std::vector<std::byte> values = metadata.Bytes();
  header.insert(header.end(), values.begin(), values.end());
  uint64_t offset = 0;
  for (const Tensor& tensor : tensors) {
    PutText(header, tensor.name);
    Put(header, static_cast<uint32_t>(tensor.dims.size()));
    for (const uint64_t dim : tensor.dims) Put(header, dim);
    Put(header, static_cast<uint32_t>(tensor.type));
    Put(header, offset);
    writer->sizes_.push_back(tensor.bytes());
    offset = (offset + tensor.bytes() + metadata.alignment() - 1) & ~(metadata.alignment() - 1);
  }
  status = writer->Append(header);
  if (status.ok()) status = writer->Pad();
  if (!status.ok()) return status;
  if (!tensors.empty()) writer->left_ = writer->sizes_.front();
  return writer;
}

GgufWriter::~GgufWriter() {
  if (file_ < 0) return;
  close(file_);
  unlink(unfinished_.c_str());
}

absl::Status GgufWriter::Write(std::span<const std::byte> data) {
  if (data.size() > left_) {
    return absl::FailedPreconditionError(
        Cat("tensor ", tensor_, " has ", left_, " bytes left, not ", data.size()));
  }
  absl::Status status = Append(data);
  left_ -= data.size();
  if (status.ok() && left_ == 0) {
    status = Pad();
    ++tensor_;
    left_ = tensor_ < sizes_.size() ? sizes_[tensor_] : 0;
  }
  return status;
}

absl::StatusOr<uint64_t> GgufWriter::Finish() {
  if (tensor_ < sizes_.size()) {
    return absl::FailedPreconditionError(
        Cat("only ", tensor_, " of ", sizes_.size(), " tensors are written"));
  }
  if (fsync(file_) != 0) return Failed("write", unfinished_);
  absl::Status status = CheckAbsent(path_);
  if (status.ok() && rename(unfinished_.c_str(), path_.c_str()) != 0) {
    status = Failed("rename", unfinished_);
  }
  if (!status.ok()) return status;
  close(file_);
  file_ = -1;
  return size_;
}

absl::Status GgufWriter::Append(std::span<const std::byte> bytes) {
  if (!WriteToFile(file_, bytes)) return Failed("write", unfinished_);
  size_ += bytes.size();
  return absl::OkStatus();
}

absl::Status GgufWriter::Pad() {
  const std::vector<std::byte> zeros((alignment_ - size_ % alignment_) % alignment_);
  return Append(zeros);
}

}  // namespace flotilla::model
