#include "model/huggingface/safetensors_writer.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <string_view>

#include "common/rt/write_to_file.h"
#include "common/types/text.h"
#include "model/huggingface/json_file.h"
#include "model/huggingface/safetensors_file.h"

namespace flotilla::model {
namespace {

absl::Status WriteFailed(std::string_view what, const std::string& path) {
  return absl::ErrnoToStatus(errno, Cat("cannot ", what, " ", path));
}

absl::Status WriteContent(int file, const std::string& path, std::string_view header,
                          std::span<const SafetensorsEntry> entries) {
  const uint64_t length = header.size();
  bool good = WriteToFile(file, std::as_bytes(std::span(&length, 1))) && WriteToFile(file, header);
  for (const SafetensorsEntry& entry : entries) good = good && WriteToFile(file, entry.data);
  return good && fsync(file) == 0 ? absl::OkStatus() : WriteFailed("write", path);
}

}  // namespace

SafetensorsEntry EntryOf(const Tensor& tensor) {
  SafetensorsEntry entry{
      .name = std::string(tensor.name), .type = tensor.type, .shape = {}, .data = tensor.data};
  for (uint32_t axis = tensor.rank; axis-- > 0;) entry.shape.push_back(tensor.dims[axis]);
  return entry;
}

absl::Status WriteSafetensors(const std::string& path, std::span<const SafetensorsEntry> entries) {
  nlohmann::ordered_json header = {{"__metadata__", {{"format", "pt"}}}};
  uint64_t at = 0;
  for (const SafetensorsEntry& entry : entries) {
    const std::string_view type = SafetensorsTypeName(entry.type);
    if (type.empty()) {
      return InvalidArgument("tensor ", entry.name, " is ", GgmlTypeName(entry.type),
                             ", which safetensors files do not have");
    }
    const uint64_t end = at + entry.data.size();
    header[entry.name] = {
        {"dtype", std::string(type)}, {"shape", entry.shape}, {"data_offsets", {at, end}}};
    at = end;
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');  // the data are aligned to 8 bytes
  const std::string unfinished = path + ".unfinished";
  const int file = open(unfinished.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (file < 0) return WriteFailed("create", unfinished);
  absl::Status status = WriteContent(file, unfinished, text, entries);
  close(file);
  if (status.ok() && rename(unfinished.c_str(), path.c_str()) != 0) {
    status = WriteFailed("rename", unfinished);
  }
  if (!status.ok()) unlink(unfinished.c_str());
  return status;
}

}  // namespace flotilla::model
