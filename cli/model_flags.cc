#include "cli/model_flags.h"

#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "model/load_spec.h"
#include "worker/compute/model_shard.h"

namespace flotilla::cli {
namespace {

// INVALID_ARGUMENT "--flag value: why".
template <class Value>
absl::Status Wrong(const char* flag, const Value& value, absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat(flag, " ", value, ": ", why));
}

absl::Status CheckSpeculation(const RoleFlags& flags, const model::ModelSpec& spec) {
  if (flags.speculation == "off") return absl::OkStatus();
  if (flags.draft_layers > static_cast<std::int64_t>(spec.layers.size())) {
    return Wrong("--draft-layers", flags.draft_layers,
                 absl::StrCat("the model has ", spec.layers.size(), " layers"));
  }
  if (flags.speculation == "draft" && flags.pipeline_parallel > 1) {
    return Wrong("--speculation", "draft", "it needs all layers on one stage, --pp 1");
  }
  return absl::OkStatus();
}

absl::Status CheckKv(const RoleFlags& flags, const worker::KvFormats& formats,
                     const model::ModelSpec& spec) {
  const std::size_t layers = spec.layers.size();
  if (!formats.some.empty() && formats.some.back().layers.end > layers) {
    return Wrong("--kv-layers", flags.kv_layers,
                 absl::StrCat("the model has ", layers, " layers, from 0 on"));
  }
  if (!spec.attention().latent.has_value()) return absl::OkStatus();
  constexpr absl::string_view kWhy = "V of this model is a part of K, and has its type";
  constexpr absl::string_view kRuns = "K of this model is a latent, which takes 8 bits or more";
  if (formats.most.key != formats.most.value) {
    return Wrong("--kv-value-type", flags.kv_value_type, kWhy);
  }
  if (formats.most.has_runs()) return Wrong("--kv-type", flags.kv_type, kRuns);
  for (const auto& some : formats.some) {
    if (some.format.key != some.format.value) return Wrong("--kv-layers", flags.kv_layers, kWhy);
    if (some.format.has_runs()) return Wrong("--kv-layers", flags.kv_layers, kRuns);
  }
  return absl::OkStatus();
}

// Checks how much memory the ranks on this host reserve together, and the directory that they
// use on disk.
absl::Status CheckMemory(const RoleFlags& flags, const worker::RankOptions& options,
                         const model::ModelSpec& spec) {
  if (!flags.group_network.empty()) return absl::OkStatus();  // each host checks its own
  const worker::KvShape shape = worker::KvShapeOf(
      spec, options.kv_format, {0, static_cast<std::uint32_t>(spec.layers.size())},
      spec.attention().kv_heads);
  const std::int64_t memory = std::int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGESIZE);
  const std::int64_t most = memory / shape.bytes_per_block();
  for (const auto& [flag, blocks] :
       {std::pair("--kv-blocks", flags.kv_blocks), std::pair("--host-blocks", flags.host_blocks)}) {
    if (blocks <= most) continue;
    return absl::ResourceExhaustedError(
        absl::StrCat(flag, " ", blocks, ": blocks of ", shape.bytes_per_block(),
                     " bytes are more than this machine's memory, which holds ", most));
  }
  if (flags.disk_blocks > 0 && access(flags.disk_directory.c_str(), W_OK | X_OK) != 0) {
    return Wrong("--disk-dir", flags.disk_directory, std::strerror(errno));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckModelFlags(const RoleFlags& flags, const worker::RankOptions& options,
                             const model::Checkpoint& file) {
  const absl::StatusOr<model::ModelSpec> spec = model::LoadSpec(file);
  if (!spec.ok()) return spec.status();
  if (flags.max_model_len > std::int64_t{spec->longest_context}) {
    return Wrong(
        "--max-model-len", flags.max_model_len,
        absl::StrCat(spec->longest_context > spec->context_length ? "the model can be scaled to "
                                                                  : "the model was trained for ",
                     spec->longest_context, " tokens"));
  }
  if (auto status = CheckKv(flags, options.kv_format, *spec); !status.ok()) return status;
  if (auto status = CheckSpeculation(flags, *spec); !status.ok()) return status;
  if (auto status = CheckMemory(flags, options, *spec); !status.ok()) return status;
  const auto layout = worker::ShardModel(file, *spec, options.shape, options.balance);
  if (layout.ok() || !absl::IsInvalidArgument(layout.status())) return layout.status();
  // "tp 4: the model can be cut into 3 ..."
  return absl::InvalidArgumentError(absl::StrCat("--", layout.status().message()));
}

}  // namespace flotilla::cli
