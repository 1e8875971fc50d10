#include "model/gguf/gguf_file.h"

#include <bit>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/strings/escaping.h"
#include "common/types/text.h"

namespace flotilla::model {
namespace {

static_assert(std::endian::native == std::endian::little, "GGUF is read in place");

constexpr uint32_t kMagic = 0x46554747;  // "GGUF"
constexpr size_t kMaxKeyBytes = 65535;
constexpr size_t kMaxTensorNameBytes = 63;
constexpr uint32_t kMaxRank = 4;
// What a head may have, so that it takes a bounded multiple of its bytes in memory. Published files
// have some 60 values, 3,000 tensors, and arrays of half a million strings.
constexpr uint64_t kMaxValues = 1 << 16;
constexpr uint64_t kMaxTensorInfos = 1 << 18;
constexpr uint64_t kMaxStrings = 1 << 22;
constexpr uint64_t kMaxNumbers = 1 << 21;
// Smallest encodings: a key of one byte with a one-byte value, and a tensor
// with a one-byte name and one dimension. They bound the counts in the header.
constexpr uint64_t kMinValueBytes = 8 + 1 + 4 + 1;
constexpr uint64_t kMinTensorBytes = 8 + 1 + 4 + 8 + 4 + 8;

// Bytes of one element of a fixed-size type; 0 for strings, arrays and ids
// outside the table.
size_t ScalarBytes(GgufType type) {
  switch (type) {
    case GgufType::kUint8:
    case GgufType::kInt8:
    case GgufType::kBool:
      return 1;
    case GgufType::kUint16:
    case GgufType::kInt16:
      return 2;
    case GgufType::kUint32:
    case GgufType::kInt32:
    case GgufType::kFloat32:
      return 4;
    case GgufType::kUint64:
    case GgufType::kInt64:
    case GgufType::kFloat64:
      return 8;
    case GgufType::kString:
    case GgufType::kArray:
      break;
  }
  return 0;
}

template <typename T>
T Load(const std::byte* p) {
  T value;
  std::memcpy(&value, p, sizeof value);
  return value;
}

std::string_view AsText(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::string Quote(std::string_view text) {
  constexpr size_t kShown = 80;
  return Cat("'", absl::CHexEscape(ToAbsl(text.substr(0, kShown))), "'");
}

// The signed integer of an integer type; nullopt for other types and for u64
// values past int64.
std::optional<int64_t> LoadInt(GgufType type, const std::byte* p) {
  switch (type) {
    case GgufType::kUint8:
      return Load<uint8_t>(p);
    case GgufType::kInt8:
      return Load<int8_t>(p);
    case GgufType::kUint16:
      return Load<uint16_t>(p);
    case GgufType::kInt16:
      return Load<int16_t>(p);
    case GgufType::kUint32:
      return Load<uint32_t>(p);
    case GgufType::kInt32:
      return Load<int32_t>(p);
    case GgufType::kInt64:
      return Load<int64_t>(p);
    case GgufType::kUint64: {
      const uint64_t value = Load<uint64_t>(p);
      if (value > INT64_MAX) return std::nullopt;
      return static_cast<int64_t>(value);
    }
    default:
      return std::nullopt;
  }
}

absl::Status Absent(std::string_view key) {
  return absl::NotFoundError(Cat("GGUF key ", Quote(key), " is missing"));
}

absl::Status WrongType(std::string_view key, std::string_view wanted) {
  return InvalidArgument("GGUF key ", Quote(key), " is not ", wanted);
}

absl::Status TooMany(std::string_view key, const GgufValue& value, uint64_t most) {
  return InvalidArgument("GGUF key ", Quote(key), " has ", value.count, " elements, not at most ",
                         most);
}

}  // namespace

void GgufFile::ReleasePages() const {
  if (mapping_ != nullptr) mapping_->ReleasePages();
}

// Reads the file once, front to back. The first failure sticks: later reads return zeros,
// so callers check ok() only before they act on what they read.
class GgufFile::Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : bytes_(bytes) {}

  absl::Status ReadAll(GgufFile& file) {
    ReadHeader(file);
    for (uint64_t i = 0; ok() && i < value_count_; ++i) ReadValue(i, file);
    for (uint64_t i = 0; ok() && i < tensor_count_; ++i) ReadTensorInfo(i, file);
    if (ok()) PlaceTensors(file);
    return status_;
  }

 private:
  bool ok() const { return status_.ok(); }
  size_t left() const { return bytes_.size() - at_; }

  void Fail(std::string_view problem) {
    if (!ok()) return;
    status_ =
        InvalidArgument("GGUF: ", context_, problem, " (byte ", at_, " of ", bytes_.size(), ")");
  }

  std::span<const std::byte> Take(uint64_t count, std::string_view what) {
    if (!ok()) return {};
    if (count > left()) {
      Fail(Cat(what, " needs ", count, " bytes, ", left(), " are left"));
      return {};
    }
    const auto taken = bytes_.subspan(at_, count);
    at_ += count;
    return taken;
  }

  template <typename T>
  T Read(std::string_view what) {
    const auto raw = Take(sizeof(T), what);
    return raw.empty() ? T{} : Load<T>(raw.data());
  }

  std::string_view ReadString(std::string_view what) {
    const uint64_t length = Read<uint64_t>(what);
    return AsText(Take(length, what));
  }

  void ReadHeader(GgufFile& file) {
    context_ = "header: ";
    if (Read<uint32_t>("magic") != kMagic) return Fail("the file does not start with 'GGUF'");
    file.version_ = Read<uint32_t>("version");
    if (ok() && (file.version_ & 0xffff) == 0) {
      return Fail("big-endian (or version 0) files are not supported");
    }
    if (ok() && file.version_ != 2 && file.version_ != 3) {
      return Fail(Cat("version ", file.version_, " is not supported (2 and 3 are)"));
    }
    tensor_count_ = Read<uint64_t>("tensor count");
    value_count_ = Read<uint64_t>("value count");
    if (!ok()) return;
    if (value_count_ > left() / kMinValueBytes) {
      return Fail(Cat(value_count_, " values cannot fit into the file"));
    }
    if (tensor_count_ > left() / kMinTensorBytes) {
      return Fail(Cat(tensor_count_, " tensors cannot fit into the file"));
    }
    if (value_count_ > kMaxValues) {
      return Fail(Cat(value_count_, " values, not at most ", kMaxValues));
    }
    if (tensor_count_ > kMaxTensorInfos) {
      return Fail(Cat(tensor_count_, " tensors, not at most ", kMaxTensorInfos));
    }
  }

  void ReadValue(uint64_t index, GgufFile& file) {
    context_ = Cat("value ", index, ": ");
    const std::string_view key = ReadString("key");
    if (!ok()) return;
    if (key.empty() || key.size() > kMaxKeyBytes) return Fail("key of a length out of range");
    for (const char c : key) {
      if (c <= ' ' || c > '~') return Fail(Cat("key ", Quote(key), " is not ASCII text"));
    }
    context_ = Cat("value ", index, " ", Quote(key), ": ");
    GgufValue value;
    value.type = value.element_type = GgufType{Read<uint32_t>("type")};
    value.count = 1;
    if (value.type == GgufType::kArray) {
      value.element_type = GgufType{Read<uint32_t>("element type")};
      value.count = Read<uint64_t>("element count");
    }
    value.bytes = ReadElements(value);
    if (ok() && !file.values_.emplace(key, value).second) Fail("the key appears twice");
  }

  // The packed elements of `value`, checked.
  std::span<const std::byte> ReadElements(const GgufValue& value) {
    const GgufType type = value.element_type;
    if (type == GgufType::kString && value.type == GgufType::kString) {
      return Take(Read<uint64_t>("string"), "string");
    }
    if (type == GgufType::kString) {
      const size_t begin = at_;
      for (uint64_t i = 0; ok() && i < value.count; ++i) ReadString("string of an array");
      return ok() ? bytes_.subspan(begin, at_ - begin) : std::span<const std::byte>{};
    }
    if (type == GgufType::kArray) {
      Fail("nested arrays are not supported");
      return {};
    }
    const size_t width = ScalarBytes(type);
    if (ok() && width == 0) Fail(Cat("unknown type ", static_cast<uint32_t>(type)));
    if (!ok()) return {};
    if (value.count > left() / width) {
      Fail(Cat(value.count, " elements of ", width, " bytes, ", left(), " are left"));
      return {};
    }
    const auto raw = Take(value.count * width, "elements");
    if (type == GgufType::kBool) {
      for (const std::byte b : raw) {
        if (b > std::byte{1}) Fail("a bool that is neither 0 nor 1");
      }
    }
    return raw;
  }

  void ReadTensorInfo(uint64_t index, GgufFile& file) {
    context_ = Cat("tensor ", index, ": ");
    Tensor tensor{};
    tensor.name = ReadString("name");
    if (!ok()) return;
    if (tensor.name.empty() || tensor.name.size() > kMaxTensorNameBytes) {
      return Fail("name of a length out of range");
    }
    context_ = Cat("tensor ", index, " ", Quote(tensor.name), ": ");
    tensor.rank = Read<uint32_t>("rank");
    if (ok() && (tensor.rank == 0 || tensor.rank > kMaxRank)) {
      return Fail(Cat("rank ", tensor.rank, " is not in 1..", kMaxRank));
    }
    uint64_t elements = 1;
    for (uint32_t d = 0; d < kMaxRank; ++d) {
      tensor.dims[d] = d < tensor.rank ? Read<uint64_t>("dimension") : 1;
      if (ok() &&
          (tensor.dims[d] == 0 || __builtin_mul_overflow(elements, tensor.dims[d], &elements) ||
           elements > INT64_MAX)) {
        return Fail("dimensions out of range");
      }
    }
    const uint32_t type_id = Read<uint32_t>("type");
    const uint64_t offset = Read<uint64_t>("offset");
    if (!ok()) return;
    const GgmlTypeInfo* info = FindGgmlType(type_id);
    if (info == nullptr) return Fail(Cat("unknown tensor type ", type_id));
    tensor.type = info->type;
    if (tensor.dims[0] % info->block_elements != 0) {
      return Fail(Cat("rows of ", tensor.dims[0], " are not whole blocks of ", info->block_elements,
                      " (", info->name, ")"));
    }
    uint64_t size;
    if (__builtin_mul_overflow(elements / info->block_elements, info->block_bytes, &size)) {
      return Fail("size out of range");
    }
    const auto position = static_cast<uint32_t>(file.tensors_.size());
    if (!file.tensor_index_.emplace(tensor.name, position).second) {
      return Fail("the name appears twice");
    }
    file.tensors_.push_back(tensor);
    extents_.push_back({offset, size});
  }

  // Checks that the tensors follow each other, aligned, inside the file.
  void PlaceTensors(GgufFile& file) {
    context_ = "";
    const auto alignment = file.GetUintOr("general.alignment", kDefaultAlignment);
    if (!alignment.ok()) return Fail(Cat(alignment.status().message()));
    if (!std::has_single_bit(*alignment) || *alignment > 1u << 20) {
      return Fail(Cat("alignment ", *alignment, " is not a power of two up to 2^20"));
    }
    const uint64_t mask = *alignment - 1;
    const uint64_t data_begin = (at_ + mask) & ~mask;
    file.metadata_ = bytes_.first(at_);
    if (file.tensors_.empty()) return;
    if (data_begin > bytes_.size()) return Fail("the file ends before its tensor data");
    const auto data = bytes_.subspan(data_begin);
    uint64_t expected = 0;
    for (size_t i = 0; i < file.tensors_.size(); ++i) {
      Tensor& tensor = file.tensors_[i];
      const auto [offset, size] = extents_[i];
      context_ = Cat("tensor ", i, " ", Quote(tensor.name), ": ");
      if (offset != expected) {
        return Fail(Cat("offset ", offset, " where ", expected, " follows"));
      }
      if (offset > data.size() || size > data.size() - offset) {
        return Fail(
            Cat(size, " bytes at offset ", offset, " of ", data.size(), " bytes of tensor data"));
      }
      tensor.data = data.subspan(offset, size);
      expected = (offset + size + mask) & ~mask;  // both below the file size
    }
  }

  struct Extent {
    uint64_t offset;
    uint64_t size;
  };

  std::span<const std::byte> bytes_;
  size_t at_ = 0;
  absl::Status status_;
  std::string context_;
  uint64_t tensor_count_ = 0;
  uint64_t value_count_ = 0;
  std::vector<Extent> extents_;  // as tensors_, until they are placed
};

absl::StatusOr<GgufFile> GgufFile::Open(const std::string& path) {
  auto mapping = MappedFile::Open(path);
  if (!mapping.ok()) return mapping.status();
  auto file = Parse((*mapping)->bytes());
  if (!file.ok()) {
    return absl::Status(file.status().code(), Cat(path, ": ", file.status().message()));
  }
  file->mapping_ = *std::move(mapping);
  return file;
}

absl::StatusOr<GgufFile> GgufFile::Parse(std::span<const std::byte> bytes) {
  GgufFile file;
  if (absl::Status status = Reader(bytes).ReadAll(file); !status.ok()) return status;
  return file;
}

const GgufValue* GgufFile::Find(std::string_view key) const {
  const auto it = values_.find(key);
  return it == values_.end() ? nullptr : &it->second;
}

const Tensor* GgufFile::FindTensor(std::string_view name) const {
  const auto it = tensor_index_.find(name);
  return it == tensor_index_.end() ? nullptr : &tensors_[it->second];
}

absl::StatusOr<uint64_t> GgufFile::GetUint(std::string_view key) const {
  const GgufValue* value = Find(key);
  if (value == nullptr) return Absent(key);
  if (value->type == GgufType::kArray) return WrongType(key, "a single integer");
  const auto number = LoadInt(value->type, value->bytes.data());
  if (!number || *number < 0) return WrongType(key, "a non-negative integer");
  return static_cast<uint64_t>(*number);
}

absl::StatusOr<double> GgufFile::GetFloat(std::string_view key) const {
  const GgufValue* value = Find(key);
  if (value == nullptr) return Absent(key);
  if (value->type == GgufType::kFloat32) return Load<float>(value->bytes.data());
  if (value->type == GgufType::kFloat64) return Load<double>(value->bytes.data());
  return WrongType(key, "a float");
}

absl::StatusOr<bool> GgufFile::GetBool(std::string_view key) const {
  const GgufValue* value = Find(key);
  if (value == nullptr) return Absent(key);
  if (value->type != GgufType::kBool) return WrongType(key, "a bool");
  return value->bytes[0] != std::byte{0};
}

absl::StatusOr<std::string_view> GgufFile::GetString(std::string_view key) const {
  const GgufValue* value = Find(key);
  if (value == nullptr) return Absent(key);
  if (value->type != GgufType::kString) return WrongType(key, "a string");
  return AsText(value->bytes);
}

absl::StatusOr<std::vector<std::string_view>> GgufFile::GetStrings(std::string_view key) const {
  const GgufValue* value = Find(key);
  if (value == nullptr) return Absent(key);
  if (value->type != GgufType::kArray || value->element_type != GgufType::kString) {
    return WrongType(key, "an array of strings");
  }
  if (value->count > kMaxStrings) return TooMany(key, *value, kMaxStrings);
  std::vector<std::string_view> strings;
  strings.reserve(value->count);  // each took at least 8 bytes of the file
  for (size_t at = 0; at < value->bytes.size();) {
    const uint64_t length = Load<uint64_t>(value->bytes.data() + at);
    strings.push_back(AsText(value->bytes.subspan(at + sizeof length, length)));
    at += sizeof length + length;
  }
  return strings;
}

absl::StatusOr<std::vector<int64_t>> GgufFile::GetInts(std::string_view key) const {
  const GgufValue* value = Find(key);
  if (value == nullptr) return Absent(key);
  const size_t width = ScalarBytes(value->element_type);
  if (value->type != GgufType::kArray || width == 0) return WrongType(key, "an array of integers");
  if (value->count > kMaxNumbers) return TooMany(key, *value, kMaxNumbers);
  std::vector<int64_t> numbers;
  numbers.reserve(value->count);
  for (uint64_t i = 0; i < value->count; ++i) {
    const auto number = LoadInt(value->element_type, value->bytes.data() + i * width);
    if (!number) return WrongType(key, "an array of integers");
    numbers.push_back(*number);
  }
  return numbers;
}

absl::StatusOr<std::vector<bool>> GgufFile::GetBools(std::string_view key) const {
  const GgufValue* value = Find(key);
  if (value == nullptr) return Absent(key);
  if (value->type != GgufType::kArray || value->element_type != GgufType::kBool) {
    return WrongType(key, "an array of bools");
  }
  if (value->count > kMaxNumbers) return TooMany(key, *value, kMaxNumbers);
  std::vector<bool> flags;
  flags.reserve(value->count);
  for (const std::byte flag : value->bytes) flags.push_back(flag != std::byte{0});
  return flags;
}

absl::StatusOr<std::vector<float>> GgufFile::GetFloats(std::string_view key) const {
  const GgufValue* value = Find(key);
  if (value == nullptr) return Absent(key);
  if (value->type != GgufType::kArray || value->element_type != GgufType::kFloat32) {
    return WrongType(key, "an array of 32-bit floats");
  }
  if (value->count > kMaxNumbers) return TooMany(key, *value, kMaxNumbers);
  std::vector<float> numbers(value->count);
  if (!numbers.empty()) std::memcpy(numbers.data(), value->bytes.data(), value->bytes.size());
  return numbers;
}

absl::StatusOr<uint64_t> GgufFile::GetUintOr(std::string_view key, uint64_t fallback) const {
  if (Find(key) == nullptr) return fallback;
  return GetUint(key);
}

absl::StatusOr<double> GgufFile::GetFloatOr(std::string_view key, double fallback) const {
  if (Find(key) == nullptr) return fallback;
  return GetFloat(key);
}

absl::StatusOr<bool> GgufFile::GetBoolOr(std::string_view key, bool fallback) const {
  if (Find(key) == nullptr) return fallback;
  return GetBool(key);
}

}  // namespace flotilla::model
