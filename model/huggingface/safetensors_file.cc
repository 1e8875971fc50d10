#include "model/huggingface/safetensors_file.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <optional>
#include <string_view>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/escaping.h"
#include "common/types/text.h"
#include "model/huggingface/json_file.h"
#include "nlohmann/json.hpp"

namespace flotilla::model {
namespace {

static_assert(std::endian::native == std::endian::little, "safetensors are read in place");

using Json = nlohmann::json;

constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // the format's own limit
constexpr size_t kMaxNameBytes = 255;
constexpr size_t kMaxTensors = 1 << 18;  // several times those of the largest published model
constexpr size_t kMaxDims = 4;
constexpr size_t kLengthBytes = 8;

std::string QuotedName(std::string_view text) {
  constexpr size_t kShown = 80;
  return Cat("'", absl::CHexEscape(ToAbsl(text.substr(0, kShown))), "'");
}

constexpr std::pair<std::string_view, GgmlType> kSafetensorsTypes[] = {
    {"F32", GgmlType::kF32},
    {"F16", GgmlType::kF16},
    {"BF16", GgmlType::kBF16},
    {"F64", GgmlType::kF64},
    {"I8", GgmlType::kI8},
    {"I16", GgmlType::kI16},
    {"I32", GgmlType::kI32},
    {"I64", GgmlType::kI64},
    {"U8", GgmlType::kU8},
    {"F8_E4M3", GgmlType::kF8_E4M3},
    {"F8_E8M0", GgmlType::kF8_E8M0},
    // Masks, which no model takes.
    {"BOOL", GgmlType::kU8}};

std::optional<GgmlType> TypeNamed(std::string_view dtype) {
  const auto found =
      std::ranges::find(kSafetensorsTypes, dtype, &std::pair<std::string_view, GgmlType>::first);
  return found == std::end(kSafetensorsTypes) ? std::nullopt : std::optional(found->second);
}

// A tensor as the header describes it.
struct Entry {
  std::unique_ptr<const std::string> name;
  std::optional<GgmlType> type;
  std::vector<uint64_t> shape;
  std::vector<uint64_t> offsets;  // begin and end in the data
  bool has_shape = false;
};

// Takes the events of the JSON parser. The header is { name: { field: value } }, in which a field
// is a string or a list of numbers.
class HeaderReader : public nlohmann::json_sax<Json> {
 public:
  absl::Status status;
  std::vector<Entry> entries;

  bool start_object(size_t) override {
    ++depth_;
    if (depth_ == 1 && list_ == nullptr) return true;
    if (depth_ == 2 && list_ == nullptr) return true;
    return Fail("an object where a value of a tensor belongs");
  }
  bool end_object() override {
    if (depth_ == 2 && !in_metadata_ && !CheckEntry()) return false;
    if (depth_ == 2) in_metadata_ = false;
    --depth_;
    return true;
  }
  bool key(std::string& name) override {
    if (depth_ == 1) return BeginEntry(name);
    if (in_metadata_) return true;
    field_ = name == "dtype"          ? kType
             : name == "shape"        ? kShape
             : name == "data_offsets" ? kOffsets
                                      : kNone;
    return field_ != kNone || Fail(Cat("the unknown field ", QuotedName(name)));
  }
  bool string(std::string& value) override {
    if (depth_ == 2 && in_metadata_) return true;
    if (depth_ != 2 || list_ != nullptr || field_ != kType) return Fail("a string out of place");
    Entry& entry = entries.back();
    if (entry.type.has_value()) return Fail("dtype appears twice");
    entry.type = TypeNamed(value);
    if (entry.type.has_value()) return true;
    status = Unimplemented("safetensors: tensor ", QuotedName(*entry.name), " has the dtype ",
                           QuotedName(value), ", which is not supported");
    return false;
  }
  bool start_array(size_t) override {
    if (depth_ != 2 || in_metadata_ || list_ != nullptr || field_ == kType) {
      return Fail("a list out of place");
    }
    Entry& entry = entries.back();
    const bool shape = field_ == kShape;
    list_ = shape ? &entry.shape : &entry.offsets;
    if (!list_->empty() || (shape && entry.has_shape)) return Fail("a field appears twice");
    entry.has_shape |= shape;
    return true;
  }
  bool end_array() override {
    list_ = nullptr;
    return true;
  }
  bool number_unsigned(uint64_t value) override {
    if (list_ == nullptr) return Fail("a number out of place");
    if (list_->size() >= kMaxDims) return Fail(Cat("more than ", kMaxDims, " numbers in a list"));
    list_->push_back(value);
    return true;
  }
  bool number_integer(int64_t) override { return Fail("a negative number"); }
  bool number_float(double, const std::string&) override {
    return Fail("a number with a fraction");
  }
  bool null() override { return Fail("null"); }
  bool boolean(bool) override { return Fail("a bool"); }
  bool binary(Json::binary_t&) override { return Fail("binary data"); }
  bool parse_error(size_t position, const std::string&, const Json::exception&) override {
    return Fail(Cat("no valid JSON at byte ", position));
  }

 private:
  enum Field { kNone, kType, kShape, kOffsets };

  bool Fail(std::string_view problem) {
    const std::string where =
        entries.empty() || depth_ < 2 ? std::string() : Cat(QuotedName(*entries.back().name), ": ");
    status = InvalidArgument("safetensors: header: ", where, "it has ", problem);
    return false;
  }

  bool BeginEntry(std::string& name) {
    in_metadata_ = name == "__metadata__";
    if (in_metadata_) return true;
    if (name.empty() || name.size() > kMaxNameBytes) {
      return Fail(Cat("a name of ", name.size(), " bytes, not 1..", kMaxNameBytes));
    }
    if (entries.size() == kMaxTensors) return Fail(Cat("more than ", kMaxTensors, " tensors"));
    entries.push_back({.name = std::make_unique<const std::string>(std::move(name)),
                       .type = {},
                       .shape = {},
                       .offsets = {}});
    if (names_.insert(*entries.back().name).second) return true;
    return Fail(Cat("tensor ", QuotedName(*entries.back().name), " twice"));
  }

  bool CheckEntry() {
    const Entry& entry = entries.back();
    if (entry.type.has_value() && entry.has_shape && entry.offsets.size() == 2) return true;
    return Fail("no dtype, no shape, or not two data_offsets");
  }

  int depth_ = 0;
  bool in_metadata_ = false;
  Field field_ = kNone;
  std::vector<uint64_t>* list_ = nullptr;  // that numbers belong to
  absl::flat_hash_set<std::string_view, TextHash, TextEqual> names_;
};

}  // namespace

class SafetensorsFile::Reader {
 public:
  static absl::Status Read(std::span<const std::byte> bytes, SafetensorsFile& file) {
    uint64_t length = 0;
    if (bytes.size() < kLengthBytes) return InvalidArgument("safetensors: the file has no header");
    std::memcpy(&length, bytes.data(), kLengthBytes);
    const uint64_t left = bytes.size() - kLengthBytes;
    if (length > kMaxHeaderBytes || length > left) {
      return InvalidArgument("safetensors: a header of ", length, " bytes, but ",
                             std::min(left, kMaxHeaderBytes), " are possible");
    }
    file.header_ = bytes.first(kLengthBytes + length);
    const auto* text = reinterpret_cast<const char*>(bytes.data()) + kLengthBytes;
    if (length == 0 || text[0] != '{') {
      return InvalidArgument("safetensors: the header does not begin with '{'");
    }
    if (HasEndlessNumber({text, length})) {
      return InvalidArgument("safetensors: the header has a number without an end");
    }
    HeaderReader reader;
    if (!Json::sax_parse(text, text + length, &reader)) return reader.status;
    return Place(std::move(reader.entries), bytes.subspan(kLengthBytes + length), file);
  }

 private:
  // Checks that the tensors fill the data without a gap.
  static absl::Status Place(std::vector<Entry> entries, std::span<const std::byte> data,
                            SafetensorsFile& file) {
    std::ranges::sort(entries,
                      [](const Entry& a, const Entry& b) { return a.offsets < b.offsets; });
    uint64_t expected = 0;
    for (Entry& entry : entries) {
      Tensor tensor{.name = *entry.name,
                    .rank = static_cast<uint32_t>(std::max<size_t>(entry.shape.size(), 1)),
                    .dims = {1, 1, 1, 1},
                    .type = *entry.type,
                    .data = {}};
      uint64_t size = InfoOf(tensor.type).block_bytes;
      for (size_t i = 0; i < entry.shape.size(); ++i) {
        tensor.dims[i] = entry.shape[entry.shape.size() - 1 - i];
        if (__builtin_mul_overflow(size, tensor.dims[i], &size)) size = UINT64_MAX;
      }
      const uint64_t begin = entry.offsets[0], end = entry.offsets[1];
      const auto bad = [&](std::string_view problem) {
        return InvalidArgument("safetensors: tensor ", QuotedName(*entry.name), ": data_offsets [",
                               begin, ", ", end, "]: ", problem);
      };
      if (begin != expected) return bad(Cat("data at ", expected, " must follow"));
      if (end < begin || end > data.size()) return bad(Cat("the data has ", data.size(), " bytes"));
      if (end - begin != size) return bad(Cat("type and shape need ", size, " bytes"));
      tensor.data = data.subspan(begin, size);
      expected = end;
      file.tensors_.push_back(tensor);
      file.names_.push_back(std::move(entry.name));
    }
    if (expected == data.size()) return absl::OkStatus();
    return InvalidArgument("safetensors: ", data.size() - expected, " bytes after the last tensor");
  }
};

absl::StatusOr<SafetensorsFile> SafetensorsFile::Open(const std::string& path) {
  auto mapping = MappedFile::Open(path);
  if (!mapping.ok()) return mapping.status();
  auto file = Parse((*mapping)->bytes());
  if (!file.ok()) {
    return absl::Status(file.status().code(), Cat(path, ": ", file.status().message()));
  }
  file->mapping_ = *std::move(mapping);
  return file;
}

absl::StatusOr<SafetensorsFile> SafetensorsFile::Parse(std::span<const std::byte> bytes) {
  SafetensorsFile file;
  if (absl::Status status = Reader::Read(bytes, file); !status.ok()) return status;
  return file;
}

void SafetensorsFile::ReleasePages() const {
  if (mapping_ != nullptr) mapping_->ReleasePages();
}

std::string_view SafetensorsTypeName(GgmlType type) {
  const auto* const found =
      std::ranges::find(kSafetensorsTypes, type, &std::pair<std::string_view, GgmlType>::second);
  return found == std::end(kSafetensorsTypes) ? std::string_view() : found->first;
}

}  // namespace flotilla::model
