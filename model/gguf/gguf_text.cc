#include "model/gguf/gguf_text.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace flotilla::model {
namespace {

constexpr size_t kShownText = 60;       // bytes of a string
constexpr uint64_t kShownElements = 6;  // of an array

std::string_view TypeName(GgufType type) {
  static constexpr std::string_view kNames[] = {"u8",  "i8",  "u16",  "i16",    "u32",
                                                "i32", "f32", "bool", "string", "array",
                                                "u64", "i64", "f64"};
  return kNames[static_cast<uint32_t>(type)];  // a GgufFile holds known types only
}

template <class T>
std::string Load(std::span<const std::byte>& bytes) {
  T value;
  std::memcpy(&value, bytes.data(), sizeof(T));
  bytes = bytes.subspan(sizeof(T));
  if constexpr (sizeof(T) == 1) {
    return absl::StrCat(static_cast<int>(value));
  } else {
    return absl::StrCat(value);
  }
}

std::string Quoted(std::span<const std::byte> text) {
  const size_t shown = std::min(text.size(), kShownText);
  return absl::StrCat(
      "\"",
      absl::Utf8SafeCEscape(absl::string_view(reinterpret_cast<const char*>(text.data()), shown)),
      shown < text.size() ? "\"..." : "\"");
}

// Takes one element from the front of `bytes`, which the reader has checked.
std::string TakeElement(GgufType type, std::span<const std::byte>& bytes) {
  switch (type) {
    case GgufType::kUint8:
      return Load<uint8_t>(bytes);
    case GgufType::kInt8:
      return Load<int8_t>(bytes);
    case GgufType::kUint16:
      return Load<uint16_t>(bytes);
    case GgufType::kInt16:
      return Load<int16_t>(bytes);
    case GgufType::kUint32:
      return Load<uint32_t>(bytes);
    case GgufType::kInt32:
      return Load<int32_t>(bytes);
    case GgufType::kFloat32:
      return Load<float>(bytes);
    case GgufType::kUint64:
      return Load<uint64_t>(bytes);
    case GgufType::kInt64:
      return Load<int64_t>(bytes);
    case GgufType::kFloat64:
      return Load<double>(bytes);
    case GgufType::kBool:
      return Load<uint8_t>(bytes) == "0" ? "false" : "true";
    case GgufType::kString: {  // inside an array: length, then bytes
      uint64_t length;
      std::memcpy(&length, bytes.data(), sizeof(length));
      const std::string text = Quoted(bytes.subspan(sizeof(length), length));
      bytes = bytes.subspan(sizeof(length) + length);
      return text;
    }
    case GgufType::kArray:
      break;
  }
  return "?";
}

}  // namespace

std::string ValueText(const GgufValue& value) {
  std::span<const std::byte> bytes = value.bytes;
  if (value.type == GgufType::kString) return Quoted(bytes);
  if (value.type != GgufType::kArray) return TakeElement(value.type, bytes);
  std::vector<std::string> shown;
  for (uint64_t i = 0; i < std::min(value.count, kShownElements); ++i) {
    shown.push_back(TakeElement(value.element_type, bytes));
  }
  if (value.count > kShownElements) shown.push_back("...");
  return absl::StrCat("[", absl::StrJoin(shown, ", "), "]");
}

std::string TypeText(const GgufValue& value) {
  if (value.type != GgufType::kArray) return std::string(TypeName(value.type));
  return absl::StrCat(std::string(TypeName(value.element_type)), "[", value.count, "]");
}

std::string EscapedText(std::string_view text) {
  return absl::Utf8SafeCEscape(absl::string_view(text.data(), text.size()));
}

}  // namespace flotilla::model
