#include "cli/inspect.h"

#include <algorithm>
#include <cstring>
#include <iomanip>
#include <iostream>
#include <map>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "model/ggml_type.h"

namespace flotilla::cli {
namespace {

using model::GgufType;

constexpr std::size_t kShownText = 60;       // bytes of a string
constexpr std::uint64_t kShownElements = 6;  // of an array

std::string_view TypeName(GgufType type) {
  static constexpr std::string_view kNames[] = {"u8",  "i8",  "u16",  "i16",    "u32",
                                                "i32", "f32", "bool", "string", "array",
                                                "u64", "i64", "f64"};
  return kNames[static_cast<std::uint32_t>(type)];  // a GgufFile holds known types only
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
  const std::size_t shown = std::min(text.size(), kShownText);
  return absl::StrCat(
      "\"",
      absl::Utf8SafeCEscape(absl::string_view(reinterpret_cast<const char*>(text.data()), shown)),
      shown < text.size() ? "\"..." : "\"");
}

// Takes one element from the front of `bytes`, which the reader has checked.
std::string TakeElement(GgufType type, std::span<const std::byte>& bytes) {
  switch (type) {
    case GgufType::kUint8:
      return Load<std::uint8_t>(bytes);
    case GgufType::kInt8:
      return Load<std::int8_t>(bytes);
    case GgufType::kUint16:
      return Load<std::uint16_t>(bytes);
    case GgufType::kInt16:
      return Load<std::int16_t>(bytes);
    case GgufType::kUint32:
      return Load<std::uint32_t>(bytes);
    case GgufType::kInt32:
      return Load<std::int32_t>(bytes);
    case GgufType::kFloat32:
      return Load<float>(bytes);
    case GgufType::kUint64:
      return Load<std::uint64_t>(bytes);
    case GgufType::kInt64:
      return Load<std::int64_t>(bytes);
    case GgufType::kFloat64:
      return Load<double>(bytes);
    case GgufType::kBool:
      return Load<std::uint8_t>(bytes) == "0" ? "false" : "true";
    case GgufType::kString: {  // inside an array: length, then bytes
      std::uint64_t length;
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

std::string ValueText(const model::GgufValue& value) {
  std::span<const std::byte> bytes = value.bytes;
  if (value.type == GgufType::kString) return Quoted(bytes);
  if (value.type != GgufType::kArray) return TakeElement(value.type, bytes);
  std::vector<std::string> shown;
  for (std::uint64_t i = 0; i < std::min(value.count, kShownElements); ++i) {
    shown.push_back(TakeElement(value.element_type, bytes));
  }
  if (value.count > kShownElements) shown.push_back("...");
  return absl::StrCat("[", absl::StrJoin(shown, ", "), "]");
}

std::string TypeText(const model::GgufValue& value) {
  if (value.type != GgufType::kArray) return std::string(TypeName(value.type));
  return absl::StrFormat("%s[%d]", std::string(TypeName(value.element_type)), value.count);
}

std::string Escaped(std::string_view name) {
  return absl::Utf8SafeCEscape(absl::string_view(name.data(), name.size()));
}

// Shapes are printed as [rows, columns], as most tools do.
std::string Shape(const model::GgufTensor& tensor) {
  std::vector<std::uint64_t> dims(tensor.dims, tensor.dims + tensor.rank);
  std::reverse(dims.begin(), dims.end());
  return absl::StrCat("[", absl::StrJoin(dims, ", "), "]");
}

}  // namespace

void PrintGguf(const model::GgufFile& file, std::ostream& out) {
  std::uint64_t elements = 0, bytes = 0;
  std::map<std::string_view, int> types;
  for (const model::GgufTensor& tensor : file.tensors()) {
    elements += tensor.elements();
    bytes += tensor.data.size();
    ++types[model::GgmlTypeName(tensor.type)];
  }
  out << "GGUF v" << file.version() << ", " << file.tensors().size() << " tensors, "
      << absl::StrFormat("%.1f M parameters, %.1f MB", elements / 1e6, bytes / 1e6) << " (";
  std::string_view separator;
  for (const auto& [type, count] : types) {
    out << separator << count << " " << type;
    separator = ", ";
  }
  out << ")\n\nmetadata\n";

  std::vector<std::pair<std::string_view, const model::GgufValue*>> entries;
  for (const auto& [key, value] : file.values()) entries.emplace_back(key, &value);
  std::sort(entries.begin(), entries.end());
  for (const auto& [key, value] : entries) {
    out << "  " << std::left << std::setw(42) << Escaped(key) << std::setw(14) << TypeText(*value)
        << ValueText(*value) << "\n";
  }

  out << "\ntensors\n";
  for (const model::GgufTensor& tensor : file.tensors()) {
    out << "  " << std::left << std::setw(42) << Escaped(tensor.name) << std::setw(8)
        << model::GgmlTypeName(tensor.type) << std::setw(18) << Shape(tensor)
        << absl::StrFormat("%9.2f MB\n", tensor.data.size() / 1e6);
  }
}

absl::Status RunInspect(const std::string& path) {
  absl::StatusOr<model::GgufFile> file = model::GgufFile::Open(path);
  if (!file.ok()) return file.status();
  PrintGguf(*file, std::cout);
  return absl::OkStatus();
}

}  // namespace flotilla::cli
