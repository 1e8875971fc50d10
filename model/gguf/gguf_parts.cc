#include "model/gguf/gguf_parts.h"

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_format.h"
#include "common/types/text.h"

namespace flotilla::model {
namespace {

constexpr uint64_t kMaxParts = 1000;
constexpr char kNumber[] = "split.no";  // from 0
constexpr char kCount[] = "split.count";
constexpr char kTensors[] = "split.tensors.count";
constexpr std::string_view kExtension = ".gguf";

// The end of the name of part `number`, from 0.
std::string PartEnding(uint64_t number, uint64_t count) {
  return absl::StrFormat("-%05d-of-%05d.gguf", number + 1, count);
}

// Its length, if `name` has such an ending; otherwise 0.
size_t EndingLength(std::string_view name) {
  constexpr std::string_view kForm = "-00000-of-00000.gguf";
  if (name.size() <= kForm.size()) return 0;
  const std::string_view ending = name.substr(name.size() - kForm.size());
  const bool fits = std::ranges::equal(ending, kForm, [](char c, char form) {
    return form == '0' ? c >= '0' && c <= '9' : c == form;
  });
  return fits ? kForm.size() : 0;
}

// Files that are whole have no such key, or a count of 0 or 1.
absl::StatusOr<uint64_t> CountOf(const GgufFile& file, const std::string& name) {
  const auto count = file.GetUintOr(kCount, 1);
  if (!count.ok()) return InvalidArgument(name, ": ", count.status().message());
  if (*count > kMaxParts) {
    return InvalidArgument(name, ": GGUF key '", kCount, "' = ", *count, " is more than ",
                           kMaxParts);
  }
  return std::max<uint64_t>(*count, 1);
}

absl::Status Expect(const GgufFile& file, const std::string& name, const char* key,
                    uint64_t expected) {
  const auto value = file.GetUint(key);
  if (!value.ok()) return InvalidArgument(name, ": ", value.status().message());
  if (*value == expected) return absl::OkStatus();
  return InvalidArgument(name, ": GGUF key '", key, "' = ", *value, ", not ", expected,
                         " as the first part has it");
}

// Refuses a part that is a link to a file elsewhere than beside the first one. That may be a link
// itself, as all are in the cache of Hugging Face's hub, and then counts where it leads to, too.
absl::Status CheckLink(const std::string& first, const std::string& part) {
  namespace fs = std::filesystem;
  std::error_code error;
  const fs::path folder = fs::canonical(fs::absolute(first, error).parent_path(), error);
  const fs::path target_folder = fs::canonical(first, error).parent_path();
  const fs::path parent = fs::canonical(part, error).parent_path();
  if (error) return absl::NotFoundError(Cat("cannot open ", part));
  if (parent == folder || parent == target_folder) return absl::OkStatus();
  return InvalidArgument(part, " is a link out of its folder");
}

}  // namespace

absl::StatusOr<GgufParts> GgufParts::Open(const std::string& path) {
  auto first = GgufFile::Open(path);
  if (!first.ok()) return first.status();
  const auto count = CountOf(*first, path);
  if (!count.ok()) return count.status();
  std::vector<GgufFile> files;
  std::vector<std::string> names{path};
  const std::string stem = path.substr(0, path.size() - EndingLength(path));
  if (*count > 1) {
    const auto number = first->GetUint(kNumber);
    if (!number.ok()) return InvalidArgument(path, ": ", number.status().message());
    if (*number != 0) {
      return InvalidArgument(path, ": GGUF key '", kNumber, "' = ", *number,
                             "; a model is opened by its first part, ", stem,
                             PartEnding(0, *count));
    }
    if (path != stem + PartEnding(0, *count)) {
      return InvalidArgument(path, ": GGUF key '", kCount, "' = ", *count,
                             "; the first of these parts has a name that ends with ",
                             PartEnding(0, *count));
    }
  }
  files.push_back(*std::move(first));
  for (uint64_t number = 1; number < *count; ++number) {
    names.push_back(stem + PartEnding(number, *count));
    if (absl::Status status = CheckLink(path, names.back()); !status.ok()) return status;
    auto part = GgufFile::Open(names.back());
    if (!part.ok()) return part.status();
    files.push_back(*std::move(part));
  }
  return Join(std::move(files), names);
}

absl::StatusOr<GgufParts> GgufParts::Join(std::vector<GgufFile> files,
                                          std::span<const std::string> names) {
  GgufParts parts(std::move(files));
  const auto count = CountOf(parts.first(), names[0]);
  if (!count.ok()) return count.status();
  if (*count != parts.files_.size()) {
    return InvalidArgument(names[0], ": GGUF key '", kCount, "' = ", *count, "; there are ",
                           parts.files_.size(), " parts");
  }
  if (*count == 1) return parts;
  const auto stated = parts.first().GetUint(kTensors);
  if (!stated.ok()) return InvalidArgument(names[0], ": ", stated.status().message());
  uint64_t tensors = 0;
  for (size_t i = 0; i < parts.files_.size(); ++i) {
    const GgufFile& file = parts.files_[i];
    absl::Status status = Expect(file, names[i], kCount, *count);
    if (status.ok()) status = Expect(file, names[i], kNumber, i);
    if (status.ok()) status = Expect(file, names[i], kTensors, *stated);
    if (!status.ok()) return status;
    tensors += file.tensors().size();
  }
  if (tensors != *stated) {
    return InvalidArgument(names[0], ": GGUF key '", kTensors, "' = ", *stated, "; the parts have ",
                           tensors, " tensors");
  }
  parts.tensors_.reserve(tensors);
  parts.by_name_.reserve(tensors);
  for (size_t i = 0; i < parts.files_.size(); ++i) {
    for (const Tensor& tensor : parts.files_[i].tensors()) {
      const auto at = static_cast<uint32_t>(parts.tensors_.size());
      if (!parts.by_name_.emplace(tensor.name, at).second) {
        return InvalidArgument(names[i], ": tensor ", tensor.name, " is in another part, too");
      }
      parts.tensors_.push_back(tensor);
    }
  }
  return parts;
}

std::span<const Tensor> GgufParts::tensors() const {
  return files_.size() == 1 ? first().tensors() : tensors_;
}

const Tensor* GgufParts::FindTensor(std::string_view name) const {
  if (files_.size() == 1) return first().FindTensor(name);
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : &tensors_[found->second];
}

std::string_view GgufModelName(std::string_view name) {
  if (const size_t length = EndingLength(name); length > 0) name.remove_suffix(length);
  if (name.ends_with(kExtension) && name.size() > kExtension.size()) {
    name.remove_suffix(kExtension.size());
  }
  return name;
}

}  // namespace flotilla::model
