#include "cli/inspect.h"

#include <algorithm>
#include <iomanip>
#include <iostream>
#include <map>
#include <string_view>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "model/ggml_type.h"

namespace flotilla::cli {
namespace {

std::string Escaped(std::string_view name) {
  return absl::Utf8SafeCEscape(absl::string_view(name.data(), name.size()));
}

// Shapes are printed as [rows, columns], as most tools do.
std::string Shape(const model::Tensor& tensor) {
  std::vector<std::uint64_t> dims(tensor.dims, tensor.dims + tensor.rank);
  std::reverse(dims.begin(), dims.end());
  return absl::StrCat("[", absl::StrJoin(dims, ", "), "]");
}

}  // namespace

void PrintCheckpoint(const model::Checkpoint& file, std::ostream& out) {
  std::uint64_t elements = 0, bytes = 0;
  std::map<std::string_view, int> types;
  for (const model::Tensor& tensor : file.tensors()) {
    elements += tensor.elements();
    bytes += tensor.data.size();
    ++types[model::GgmlTypeName(tensor.type)];
  }
  out << file.format() << ", " << file.tensors().size() << " tensors, "
      << absl::StrFormat("%.1f M parameters, %.1f MB", elements / 1e6, bytes / 1e6) << " (";
  std::string_view separator;
  for (const auto& [type, count] : types) {
    out << separator << count << " " << type;
    separator = ", ";
  }
  out << ")\n\nmetadata\n";

  for (const model::MetadataEntry& entry : file.Metadata()) {
    out << "  " << std::left << std::setw(42) << entry.name << std::setw(14) << entry.type
        << entry.value << "\n";
  }

  out << "\ntensors\n";
  for (const model::Tensor& tensor : file.tensors()) {
    out << "  " << std::left << std::setw(42) << Escaped(tensor.name) << std::setw(8)
        << model::GgmlTypeName(tensor.type) << std::setw(18) << Shape(tensor)
        << absl::StrFormat("%9.2f MB\n", tensor.data.size() / 1e6);
  }
}

absl::Status RunInspect(const std::string& path) {
  const auto file = model::OpenCheckpoint(path);
  if (!file.ok()) return file.status();
  PrintCheckpoint(**file, std::cout);
  return absl::OkStatus();
}

}  // namespace flotilla::cli
