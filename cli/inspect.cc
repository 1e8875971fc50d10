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
#include "absl/strings/str_replace.h"
#include "cli/flags.h"
#include "cli/open_model.h"
#include "cli/skipped_tensors.h"
#include "common/types/kv_needs.h"
#include "kernels/kv_layout.h"
#include "kernels/packed_matrix.h"
#include "model/chat_template.h"
#include "model/ggml_type.h"
#include "model/kv_groups.h"
#include "model/load_spec.h"
#include "model/tensor_table.h"
#include "model/text/tokenizer.h"
#include "worker/compute/block_count.h"
#include "worker/compute/model_shard.h"

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

// The role of each tensor in the model, by name.
std::map<std::string, std::string_view> Roles(const model::ModelSpec& spec) {
  std::map<std::string, std::string_view> roles;
  for (const model::TensorRow& row : spec.tensors) {
    for (std::string& name : model::NamesInFile(row, spec)) {
      roles.emplace(std::move(name), model::RoleName(row.role));
    }
  }
  return roles;
}

// E.g. "4 query and 2 KV heads of 32".
std::string Heads(const model::AttentionSpec& attention) {
  if (attention.latent.has_value()) {
    return absl::StrFormat("%d query heads of %d, a latent of %d + %d", attention.heads,
                           attention.head_dim, attention.latent->rank, attention.latent->rope_dim);
  }
  std::string heads = absl::StrFormat("%d query and %d KV heads of %d", attention.heads,
                                      attention.kv_heads, attention.head_dim);
  if (attention.value_dim != attention.head_dim) {
    absl::StrAppend(&heads, " (V of ", attention.value_dim, ")");
  }
  return heads;
}

// E.g. "FFN of 1536".
std::string Ffns(const model::ModelSpec& spec) {
  std::vector<std::string> parts;
  if (const auto width = spec.ffn().width; width > 0)
    parts.push_back(absl::StrCat("FFN of ", width));
  if (const model::MoeSpec* moe = spec.moe(); moe != nullptr) {
    parts.push_back(
        absl::StrFormat("%d of %d experts of %d", moe->chosen, moe->experts, moe->expert.width));
    if (moe->shared.width > 0)
      parts.push_back(absl::StrCat("shared expert of ", moe->shared.width));
  }
  return absl::StrJoin(parts, ", ");
}

// E.g. "KV in 6 groups of 5 layers (5 of a window of 512), 1 of 30 places unused"; empty if one
// group keeps every position.
std::string KvGroups(const model::ModelSpec& spec) {
  const auto groups = spec.kv_groups.size();
  std::map<std::uint32_t, int> windows;
  for (const model::KvGroupSpec& group : spec.kv_groups) {
    if (group.window > 0) ++windows[group.window];
  }
  if (windows.empty()) return "";
  std::vector<std::string> parts;
  for (const auto& [window, count] : windows) {
    parts.push_back(absl::StrFormat("%d of a window of %d", count, window));
  }
  const auto layers = static_cast<std::uint32_t>(spec.layers.size());
  const std::uint32_t size = model::LayersPerPage(spec, 0, layers);
  const auto places = groups * size;
  return absl::StrFormat(", KV in %d %s of %d layers (%s), %d of %d places unused", groups,
                         groups == 1 ? "group" : "groups", size, absl::StrJoin(parts, ", "),
                         places - layers, places);
}

// The message in characters that a terminal may show.
std::string Shown(const absl::Status& status) {
  return absl::StrReplaceAll(absl::Utf8SafeCEscape(status.message()), {{"\\'", "'"}});
}

// What the tokenizer is, or why it cannot be used, and the same of the chat template.
std::string TextSummary(const model::Checkpoint& file) {
  const absl::StatusOr<TokenizerBundle> bundle = file.ReadTokenizer();
  const absl::Status status =
      bundle.ok() ? model::Tokenizer::Create(*bundle).status() : bundle.status();
  if (!status.ok()) return absl::StrCat("cannot be served: tokenizer: ", Shown(status));
  const std::string tokenizer =
      absl::StrFormat("tokenizer: %s, %d tokens", bundle->kind, file.token_count());
  std::string more;
  for (const NamedTemplate& named : bundle->more_templates) {
    if (named.name == "tool_use" && bundle->chat_template.has_value()) continue;
    absl::StrAppend(&more, more.empty() ? "; unused chat templates: " : ", ", Escaped(named.name));
  }
  if (!bundle->chat_template.has_value()) {
    return absl::StrCat(tokenizer, "; no chat template", more.empty() ? "" : " called default",
                        more);
  }
  const auto made = model::ChatTemplate::Compile(*bundle->chat_template);
  return absl::StrCat(tokenizer, "; chat template",
                      made.ok() ? "" : absl::StrCat(" cannot be used: ", Shown(made.status())),
                      more);
}

// A line about tensors that the text model does not use; empty if there are none.
std::string SkippedSummary(const model::Checkpoint& file) {
  const std::string text = SkippedTensorsText(file);
  return text.empty() ? "" : absl::StrCat("tensors not used for text: ", text, "\n");
}

// The bytes that the matrices take in memory.
double PackedBytes(const model::Checkpoint& file, const UnpackedExperts& unpacked) {
  double bytes = 0;
  for (const model::Tensor& tensor : file.tensors()) {
    const auto encoding =
        unpacked.tensors.contains(tensor.name) ? WeightEncoding{} : model::EncodingOf(tensor);
    const auto bits = kernels::PackedBits(encoding, static_cast<std::int64_t>(tensor.dims[0]));
    if (tensor.rank < 2 || !model::IsDecodable(tensor) || !bits.ok()) continue;
    bytes += static_cast<double>(tensor.elements()) * *bits / 8;
    if (tensor.composite == nullptr) continue;
    const double share = static_cast<double>(tensor.elements() / tensor.dims[0]) /
                         static_cast<double>(tensor.composite->rows());
    bytes += 4 * share * static_cast<double>(tensor.composite->outliers());
  }
  return bytes;
}

// The KV pool that `flotilla serve` would take here, but for its bound by --max-seqs.
std::string PoolThatFits(const model::ModelSpec& spec, double packed_bytes,
                         const AvailableMemory& memory) {
  const worker::KvShape shape = worker::KvShapeOf(
      spec, kernels::KvFormat::kBf16, {0, static_cast<std::uint32_t>(spec.layers.size())},
      spec.attention().kv_heads);
  std::uint64_t one_sequence = 0;
  const auto block_tokens = static_cast<std::uint32_t>(shape.block_tokens);
  for (const model::KvGroupSpec& group : spec.kv_groups) {
    const auto kind = group.window > 0 ? KvGroup::Kind::kWindow : KvGroup::Kind::kFull;
    one_sequence +=
        MostNamed({.kind = kind, .window = group.window, .tokens_per_block = block_tokens},
                  spec.served_context, RoleFlags().max_batch_tokens);
  }
  const std::uint64_t blocks =
      worker::BlocksWithin({.bytes = memory.bytes - static_cast<std::int64_t>(packed_bytes),
                            .share_percent = worker::kCpuSharePercent,
                            .bytes_per_block = shape.bytes_per_block(),
                            .one_sequence = one_sequence}) -
      1;
  return absl::StrFormat(
      "KV pool in bf16 on CPUs, by %d %% of the %.1f GiB that %s has available, less the matrices: "
      "%d blocks, %d tokens, %.1f sequences of %d tokens\n",
      worker::kCpuSharePercent, static_cast<double>(memory.bytes) / (1 << 30), memory.whose, blocks,
      blocks * block_tokens / spec.kv_groups.size(),
      static_cast<double>(blocks) / static_cast<double>(one_sequence), spec.served_context);
}

// What a token's K and V take on one rank, in each type.
std::string KvSizes(const model::ModelSpec& spec) {
  const bool windows = std::any_of(spec.kv_groups.begin(), spec.kv_groups.end(),
                                   [](const auto& group) { return group.window > 0; });
  std::vector<std::string> types;
  for (const kernels::KvType type : kernels::kAllKvTypes) {
    const auto format = kernels::KvFormat::Both(type);
    if (spec.attention().latent.has_value() && format.has_runs()) continue;
    const worker::KvShape shape =
        worker::KvShapeOf(spec, format, {0, static_cast<std::uint32_t>(spec.layers.size())},
                          spec.attention().kv_heads);
    const double bytes = static_cast<double>(shape.bytes_per_block()) *
                         static_cast<double>(spec.kv_groups.size()) / shape.block_tokens;
    types.push_back(absl::StrFormat("%s %.0f (%.0f per GiB)", kernels::KvFormatName(format), bytes,
                                    (1 << 30) / bytes));
    if (shape.open_bytes == 0) continue;
    absl::StrAppendFormat(&types.back(), " and %d for a sequence", shape.open_bytes);
  }
  return absl::StrCat(
      windows ? "KV bytes of a token within all windows: " : "KV bytes of a token: ",
      absl::StrJoin(types, "; "), "\n");
}

// A line about the scales of K and V that the file has; empty if it has none.
std::string KvScalesSummary(const model::ModelSpec& spec) {
  const auto count = std::count_if(spec.kv_scales.begin(), spec.kv_scales.end(),
                                   [](const auto& scales) { return scales != model::KvScales(); });
  if (count == 0) return "";
  return absl::StrFormat("scales of K and V in the file, for --kv-type fp8: of %d of %d layers\n",
                         count, spec.layers.size());
}

// What recipe `fast` multiplies by activations of 8 bits; empty if there is nothing.
std::string FastSummary(const model::Checkpoint& file) {
  using Kind = ActivationScheme::Kind;
  int dynamic = 0, fixed = 0, others = 0;
  for (const model::Tensor& tensor : file.tensors()) {
    if (tensor.composite == nullptr) continue;
    const Kind kind = model::FastEncodingOf(tensor).activations.kind;
    ++(kind == Kind::kDynamic ? dynamic : kind == Kind::kStatic ? fixed : others);
  }
  if (dynamic + fixed == 0) return "";
  std::vector<std::string> parts;
  if (dynamic > 0) parts.push_back(absl::StrCat(dynamic, " with a scale of each token"));
  if (fixed > 0) parts.push_back(absl::StrCat(fixed, " with a static scale"));
  if (others > 0) parts.push_back(absl::StrCat(others, " as with accurate"));
  return absl::StrCat("activations of quantised matrices with --compute fast: 8 bits, ",
                      absl::StrJoin(parts, ", "), "; with accurate: 16 bits\n");
}

std::string MemorySummary(const model::Checkpoint& file, const model::ModelSpec& spec,
                          const AvailableMemory& memory) {
  const UnpackedExperts experts = FindUnpackedExperts(file, spec);
  const double packed = PackedBytes(file, experts);
  std::string unpacked;
  if (experts.count > 0) {
    unpacked = absl::StrFormat(
        "; gate and up of %d experts differ in format or order, and take %.1f MB in fp32",
        experts.count, static_cast<double>(experts.memory_bytes) / 1e6);
  }
  return absl::StrFormat("matrices in memory: %.1f MB%s\n", packed / 1e6, unpacked) +
         KvSizes(spec) + KvScalesSummary(spec) + PoolThatFits(spec, packed, memory);
}

// Says what the model is, or why flotilla cannot serve it.
std::string Summary(const absl::StatusOr<model::ModelSpec>& spec) {
  if (!spec.ok()) return absl::StrCat("cannot be served: ", Shown(spec.status()));
  const std::string rows =
      spec->tokens < spec->vocab ? absl::StrFormat(" of %d rows", spec->vocab) : "";
  return absl::StrFormat("%s: %d layers of %d, %s, %s, %d tokens%s, context %d%s",
                         spec->architecture, spec->layers.size(), spec->hidden,
                         Heads(spec->attention()), Ffns(*spec), spec->tokens, rows,
                         spec->context_length, KvGroups(*spec));
}

}  // namespace

void PrintCheckpoint(const model::Checkpoint& file, const AvailableMemory& memory,
                     std::ostream& out) {
  std::uint64_t elements = 0, bytes = 0;
  std::map<std::string_view, int> types;
  for (const model::Tensor& tensor : file.tensors()) {
    elements += tensor.elements();
    bytes += tensor.bytes();
    ++types[model::TypeName(tensor)];
  }
  out << file.format() << ", " << file.tensors().size() << " tensors, "
      << absl::StrFormat("%.1f M parameters, %.1f MB", elements / 1e6, bytes / 1e6) << " (";
  std::string_view separator;
  for (const auto& [type, count] : types) {
    out << separator << count << " " << type;
    separator = ", ";
  }
  const absl::StatusOr<model::ModelSpec> spec = model::LoadSpec(file);
  out << ")\n"
      << SkippedSummary(file) << Summary(spec) << "\n"
      << (spec.ok() ? FastSummary(file) + MemorySummary(file, *spec, memory) : "")
      << TextSummary(file) << "\n\nmetadata\n";

  for (const model::MetadataEntry& entry : file.Metadata()) {
    out << "  " << std::left << std::setw(42) << entry.name << std::setw(14) << entry.type
        << entry.value << "\n";
  }

  const auto roles = spec.ok() ? Roles(*spec) : std::map<std::string, std::string_view>();
  out << "\ntensors\n";
  std::size_t width = 41;
  for (const model::Tensor& tensor : file.tensors()) {
    width = std::max(width, std::min(Escaped(tensor.name).size(), std::size_t{80}));
  }
  for (const model::Tensor& tensor : file.tensors()) {
    out << "  " << std::left << std::setw(static_cast<int>(width)) << Escaped(tensor.name) << ' '
        << std::setw(8) << model::TypeName(tensor) << ' ' << std::setw(17) << Shape(tensor)
        << absl::StrFormat("%9.2f MB", tensor.bytes() / 1e6);
    const auto role = roles.find(std::string(tensor.name));
    if (role != roles.end()) out << "  " << role->second;
    out << "\n";
  }
}

absl::Status RunInspect(const std::string& path, const std::string& quantize) {
  const auto file = OpenModel(path, quantize);
  if (!file.ok()) return file.status();
  PrintCheckpoint(**file, AvailableMemoryOf(ReadMemoryFiles()), std::cout);
  return absl::OkStatus();
}

}  // namespace flotilla::cli
