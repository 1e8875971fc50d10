#include "model/huggingface/safetensors_file.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <optional>
#include <string_view>
#include <utility>

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
// No tensor takes less of a header.
constexpr std::string_view kLeastEntry = R"("a":{"dtype":"I8","shape":[],"data_offsets":[0,1]})";

std::string QuotedName(std::string_view text) {
  constexpr size_t kShown = 80;
  return Cat("'", absl::CHexEscape(ToAbsl(text.substr(0, kShown))), "'");
}

absl::Status BadOffsets(std::string_view name, uint64_t begin, uint64_t end,
                        std::string_view problem) {
  return InvalidArgument("safetensors: tensor ", QuotedName(name), ": data_offsets [", begin, ", ",
                         end, "]: ", problem);
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

// A list of numbers in the header.
struct HeaderList {
  std::array<uint64_t, kMaxDims> values;
  size_t count = 0;
  bool given = false;
};

// A tensor as the header describes it.
struct Entry {
  const std::string* name = nullptr;  // null: no tensor is being read
  std::optional<GgmlType> type;
  HeaderList shape;
  HeaderList offsets;  // begin and end in the data
};

// Takes the events of the JSON parser. The header is { name: { field: value } }, in which a field
// is a string or a list of numbers. The tensors are added in the order of the header.
class HeaderReader : public nlohmann::json_sax<Json> {
 public:
  HeaderReader(std::span<const std::byte> data, std::deque<std::string>& names,
               std::vector<Tensor>& tensors)
      : data_(data), names_(names), tensors_(tensors) {}

  absl::Status status;

  bool start_object(size_t) override {
    ++depth_;
    if (depth_ == 1 && list_ == nullptr) return true;
    if (depth_ == 2 && list_ == nullptr) return true;
    return Fail("an object where a value of a tensor belongs");
  }
  bool end_object() override {
    if (depth_ == 2 && !in_metadata_ && !EndEntry()) return false;
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
    if (entry_.type.has_value()) return Fail("dtype appears twice");
    entry_.type = TypeNamed(value);
    if (entry_.type.has_value()) return true;
    status = Unimplemented("safetensors: tensor ", QuotedName(*entry_.name), " has the dtype ",
                           QuotedName(value), ", which is not supported");
    return false;
  }
  bool start_array(size_t) override {
    if (depth_ != 2 || in_metadata_ || list_ != nullptr || field_ == kType) {
      return Fail("a list out of place");
    }
    list_ = field_ == kShape ? &entry_.shape : &entry_.offsets;
    if (std::exchange(list_->given, true)) return Fail("a field appears twice");
    return true;
  }
  bool end_array() override {
    list_ = nullptr;
    return true;
  }
  bool number_unsigned(uint64_t value) override {
    if (list_ == nullptr) return Fail("a number out of place");
    if (list_->count == kMaxDims) return Fail(Cat("more than ", kMaxDims, " numbers in a list"));
    list_->values[list_->count++] = value;
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
        entry_.name == nullptr ? std::string() : Cat(QuotedName(*entry_.name), ": ");
    status = InvalidArgument("safetensors: header: ", where, "it has ", problem);
    return false;
  }

  bool BeginEntry(std::string& name) {
    in_metadata_ = name == "__metadata__";
    if (in_metadata_) return true;
    if (name.empty() || name.size() > kMaxNameBytes) {
      return Fail(Cat("a name of ", name.size(), " bytes, not 1..", kMaxNameBytes));
    }
    if (tensors_.size() == kMaxTensors) return Fail(Cat("more than ", kMaxTensors, " tensors"));
    entry_ = {.name = &names_.emplace_back(name), .type = {}, .shape = {}, .offsets = {}};
    return true;
  }

  bool EndEntry() {
    if (!entry_.type.has_value() || !entry_.shape.given || entry_.offsets.count != 2) {
      return Fail("no dtype, no shape, or not two data_offsets");
    }
    Tensor tensor{.name = *entry_.name,
                  .rank = static_cast<uint32_t>(std::max<size_t>(entry_.shape.count, 1)),
                  .dims = {1, 1, 1, 1},
                  .type = *entry_.type,
                  .data = {}};
    uint64_t size = InfoOf(tensor.type).block_bytes;
    for (size_t i = 0; i < entry_.shape.count; ++i) {
      tensor.dims[i] = entry_.shape.values[entry_.shape.count - 1 - i];
      if (__builtin_mul_overflow(size, tensor.dims[i], &size)) size = UINT64_MAX;
    }
    const auto [begin, end] = std::pair(entry_.offsets.values[0], entry_.offsets.values[1]);
    std::string problem;
    if (end < begin || end > data_.size()) {
      problem = Cat("the data has ", data_.size(), " bytes");
    } else if (end - begin != size) {
      problem = Cat("type and shape need ", size, " bytes");
    }
    if (!problem.empty()) {
      status = BadOffsets(tensor.name, begin, end, problem);
      return false;
    }
    tensor.data = data_.subspan(begin, size);
    tensors_.push_back(tensor);
    entry_ = {};
    return true;
  }

  const std::span<const std::byte> data_;
  std::deque<std::string>& names_;
  std::vector<Tensor>& tensors_;
  int depth_ = 0;
  bool in_metadata_ = false;
  Field field_ = kNone;
  Entry entry_;
  HeaderList* list_ = nullptr;  // that numbers belong to
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
    const auto data = bytes.subspan(kLengthBytes + length);
    // A vector that grows is there twice.
    file.tensors_.reserve(std::min<uint64_t>(kMaxTensors, length / kLeastEntry.size()));
    HeaderReader reader(data, file.names_, file.tensors_);
    if (!Json::sax_parse(text, text + length, &reader)) return reader.status;
    absl::Status status = RefuseTwins(file.tensors_);
    return status.ok() ? Place(file.tensors_, data) : status;
  }

 private:
  // Sorted, so that it takes no memory.
  static absl::Status RefuseTwins(std::vector<Tensor>& tensors) {
    std::ranges::sort(tensors, {}, &Tensor::name);
    const auto twin = std::ranges::adjacent_find(tensors, {}, &Tensor::name);
    if (twin == tensors.end()) return absl::OkStatus();
    return InvalidArgument("safetensors: header: it has tensor ", QuotedName(twin->name), " twice");
  }

  // Sorts the tensors by their data, and checks that they fill it without a gap.
  static absl::Status Place(std::vector<Tensor>& tensors, std::span<const std::byte> data) {
    std::ranges::sort(tensors, {}, [](const Tensor& tensor) {
      return std::pair(tensor.data.data(), tensor.data.size());
    });
    uint64_t expected = 0;
    for (const Tensor& tensor : tensors) {
      const auto begin = static_cast<uint64_t>(tensor.data.data() - data.data());
      const uint64_t end = begin + tensor.data.size();
      if (begin != expected) {
        return BadOffsets(tensor.name, begin, end, Cat("data at ", expected, " must follow"));
      }
      expected = end;
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
