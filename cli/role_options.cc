#include "cli/role_options.h"

#include <unistd.h>

#include <algorithm>
#include <boost/asio/ip/address.hpp>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string_view>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "cli/request_log.h"
#include "model/checkpoint.h"
#include "model/content_hash.h"
#include "proto/codec/tokenizer.h"
#include "rpc/endpoint.h"
#include "rpc/ports.h"
#include "worker/device/device_choice.h"

namespace flotilla::cli {
namespace {

// Parses "NAME=WEIGHT,...". INVALID_ARGUMENT names the entry that has another form.
absl::StatusOr<std::vector<std::pair<std::string, std::uint32_t>>> ParseWeights(
    const std::string& text) {
  std::vector<std::pair<std::string, std::uint32_t>> weights;
  for (const absl::string_view entry : absl::StrSplit(text, ',', absl::SkipEmpty())) {
    const std::vector<std::string> parts = absl::StrSplit(entry, absl::MaxSplits('=', 1));
    std::uint32_t weight = 0;
    if (parts.size() != 2 || parts[0].empty() || !absl::SimpleAtoi(parts[1], &weight) ||
        weight == 0 || weight > 1'000'000) {
      return absl::InvalidArgumentError(absl::StrCat(
          "--tenant-weights: '", entry, "' is not NAME=WEIGHT with a weight of 1 to 1000000"));
    }
    weights.emplace_back(parts[0], weight);
  }
  return weights;
}

// The type of that name; null: there is none.
const kernels::KvType* KvTypeNamed(std::string_view name) {
  const auto* const found =
      std::find_if(std::begin(kernels::kAllKvTypes), std::end(kernels::kAllKvTypes),
                   [&](kernels::KvType type) { return kernels::KvTypeName(type) == name; });
  return found == std::end(kernels::kAllKvTypes) ? nullptr : found;
}

// Parses FIRST-LAST=TYPE or LAYER=TYPE, where TYPE may be K/V.
std::optional<worker::KvFormats::Some> ParseKvLayers(absl::string_view entry) {
  const std::vector<absl::string_view> parts = absl::StrSplit(entry, absl::MaxSplits('=', 1));
  if (parts.size() != 2) return std::nullopt;
  const std::vector<absl::string_view> ends = absl::StrSplit(parts[0], absl::MaxSplits('-', 1));
  const std::vector<std::string> types = absl::StrSplit(parts[1], absl::MaxSplits('/', 1));
  std::uint32_t first = 0, last = 0;
  const kernels::KvType* const key = KvTypeNamed(types.front());
  const kernels::KvType* const value = KvTypeNamed(types.back());
  constexpr std::uint32_t kMost = 1'000'000;
  if (!absl::SimpleAtoi(ends.front(), &first) || !absl::SimpleAtoi(ends.back(), &last) ||
      first > last || last > kMost || key == nullptr || value == nullptr) {
    return std::nullopt;
  }
  return worker::KvFormats::Some{.layers = {first, last + 1},
                                 .format = {.key = *key, .value = *value}};
}

}  // namespace

absl::StatusOr<worker::KvFormats> KvFormatsOf(const RoleFlags& flags) {
  const bool same = flags.kv_value_type == "same";
  worker::KvFormats formats =
      kernels::KvFormat{.key = *KvTypeNamed(flags.kv_type),
                        .value = *KvTypeNamed(same ? flags.kv_type : flags.kv_value_type)};
  const auto wrong = [](absl::string_view entry, absl::string_view why) {
    return absl::InvalidArgumentError(absl::StrCat("--kv-layers: '", entry, "' ", why));
  };
  for (const absl::string_view entry : absl::StrSplit(flags.kv_layers, ',', absl::SkipEmpty())) {
    const auto some = ParseKvLayers(entry);
    if (!some.has_value()) {
      return wrong(entry,
                   "is not LAYERS=TYPE, as in 0-1=bf16 or 5=int8/fp16, with a type of --kv-type");
    }
    if (!formats.some.empty() && some->layers.begin < formats.some.back().layers.end) {
      return wrong(entry, "does not come after the layers before it");
    }
    if (some->format != formats.most) formats.some.push_back(*some);
  }
  return formats;
}

std::string ModelId(const RoleFlags& flags) {
  if (!flags.served_model_name.empty()) return flags.served_model_name;
  // The name of a folder may have a dot, as in Qwen3-0.6B.
  const auto path = std::filesystem::path(flags.model).lexically_normal();
  const auto name = path.has_filename() ? path.filename() : path.parent_path().filename();
  return std::string(model::ModelNameOf(name.string()));
}

absl::StatusOr<worker::RankOptions> MakeRankOptions(const RoleFlags& flags,
                                                    const std::string& model_id) {
  absl::StatusOr<kernels::Isa> isa = kernels::ParseIsa(flags.cpu_isa);
  if (!isa.ok()) return isa.status();
  worker::RankOptions options;
  options.model_id = model_id;
  options.recipe = flags.compute == "fp32"   ? worker::Recipe::kFp32
                   : flags.compute == "fast" ? worker::Recipe::kFast
                                             : worker::Recipe::kAccurate;
  const auto formats = KvFormatsOf(flags);
  if (!formats.ok()) return formats.status();
  options.kv_format = *formats;
  options.isa = *isa;
  const auto device = worker::ParseDeviceChoice(flags.device);
  if (!device.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("--device: ", device.status().message()));
  }
  options.device = *device;
  if (flags.gpu_exchange == "host") {
    options.open_nccl = [] { return absl::FailedPreconditionError("--gpu-exchange is host"); };
  }
  options.end_process = [](const std::string& why) {
    std::fprintf(stderr, "flotilla: a rank on a GPU has failed, and the process ends: %s\n",
                 why.c_str());
    std::_Exit(1);
  };
  options.shape = {.tensor = static_cast<std::uint32_t>(flags.tensor_parallel),
                   .pipeline = static_cast<std::uint32_t>(flags.pipeline_parallel)};
  options.balance =
      flags.balance == "bytes" ? worker::ShardBalance::kBytes : worker::ShardBalance::kStep;
  options.threads = static_cast<int>(flags.threads);
  options.kv_blocks = static_cast<std::uint32_t>(flags.kv_blocks);
  options.kv_share_percent = static_cast<int>(flags.kv_memory_share);
  options.max_context = static_cast<std::uint32_t>(flags.max_model_len);
  options.max_step_tokens = static_cast<std::uint32_t>(flags.max_batch_tokens);
  options.max_sequences = static_cast<std::uint32_t>(flags.max_seqs);
  options.tiers = {.host_blocks = static_cast<std::uint32_t>(flags.host_blocks),
                   .disk_blocks = static_cast<std::uint32_t>(flags.disk_blocks),
                   .disk_directory = flags.disk_directory};
  options.speculation = flags.speculation == "ngram"   ? worker::Speculation::kNgram
                        : flags.speculation == "draft" ? worker::Speculation::kDraft
                                                       : worker::Speculation::kOff;
  options.draft_tokens = static_cast<std::uint32_t>(flags.draft_tokens);
  options.draft_layers = static_cast<std::uint32_t>(flags.draft_layers);
  options.compile_limits.cpu_us = flags.grammar_cpu_ms * 1000;
  options.compile_limits.memory_bytes = static_cast<std::uint64_t>(flags.grammar_memory_mib) << 20;
  return options;
}

absl::StatusOr<scheduler::InProcessEngineOptions> MakeEngineOptions(const RoleFlags& flags,
                                                                    TokenizerContent tokenizer,
                                                                    Logger* log) {
  scheduler::InProcessEngineOptions options;
  auto weights = ParseWeights(flags.tenant_weights);
  if (!weights.ok()) return weights.status();
  options.policy = flags.policy;
  options.core.fair_share = flags.fair_share;
  options.core.tenant_weights = *std::move(weights);
  options.core.itl_target_ns = flags.itl_target_ms * 1'000'000;
  options.core.max_overtaken_rows = flags.max_overtaken_rows;
  options.core.max_wait_ns = flags.max_wait_ms * 1'000'000;
  options.core.max_preemptions = static_cast<std::uint32_t>(flags.max_preemptions);
  options.core.max_seqs = static_cast<std::uint32_t>(flags.max_seqs);
  options.core.max_step_tokens = static_cast<std::uint32_t>(flags.max_batch_tokens);
  options.core.max_chunk_tokens = static_cast<std::uint32_t>(flags.max_chunk_tokens);
  options.core.prefix_cache = flags.prefix_cache == "on";
  options.core.max_draft_tokens = static_cast<std::uint32_t>(flags.draft_tokens);
  options.core.max_queued_requests = static_cast<std::uint32_t>(flags.queue_requests);
  options.core.max_queued_tokens = static_cast<std::uint32_t>(flags.queue_tokens);
  options.max_inbox_requests = options.core.max_queued_requests;
  options.model_id = tokenizer.model_id;
  options.tokenizer_hash = tokenizer.hash;
  options.tokenizer_bytes = std::move(tokenizer.content);
  options.on_lost = [log](const Lost& lost) { LogLost(*log, lost); };
  if (log->Takes(LogLevel::kDebug)) {
    options.on_preemption = [log](const scheduler::Preemption& p) { LogPreemption(*log, p); };
    options.on_over = [log](const scheduler::ServedRecord& r) { LogServed(*log, r); };
  }
  return options;
}

TokenizerContent TokenizerContentOf(const TokenizerBundle& tokenizer, const std::string& model_id) {
  return {.model_id = model_id,
          .hash = model::TokenizerHash(tokenizer),
          .content = codec::WriteTokenizer(tokenizer)};
}

absl::StatusOr<TokenizerBundle> ReadTokenizerContent(const std::string& content) {
  const auto file = model::ParseCheckpoint(std::as_bytes(std::span(content)));
  return file.ok() ? (*file)->ReadTokenizer() : codec::ReadTokenizer(content);
}

absl::StatusOr<std::shared_ptr<rpc::Credentials>> MakeCredentials(const RoleFlags& flags,
                                                                  bool listens, const Clock* clock,
                                                                  Logger* log) {
  auto credentials = rpc::Credentials::Create({.tls_cert = flags.tls_cert,
                                               .tls_key = flags.tls_key,
                                               .tls_ca = flags.tls_ca,
                                               .secret_file = flags.fleet_secret_file,
                                               .clock = clock,
                                               .log = log});
  if (!credentials.ok() || !listens || flags.insecure_internal) return credentials;
  if (absl::Status open = rpc::CheckExposure(flags.host, **credentials); !open.ok()) return open;
  return credentials;
}

absl::Status CheckPorts(const RoleFlags& flags, bool listens) {
  struct Port {
    const char* flag;
    const char* what;
    std::int64_t number;
  };
  std::vector<Port> ports;
  if (listens) {
    ports = {{"--listen-port", "for the fleet", flags.listen_port},
             {"--metrics-port", "metrics", flags.metrics_port}};
  } else {
    ports = {{"--http-port", "HTTP", flags.http_port}, {"--grpc-port", "gRPC", flags.grpc_port}};
    if (flags.health_port >= 0) ports.push_back({"--health-port", "health", flags.health_port});
  }
  for (auto port = ports.begin(); port != ports.end(); ++port) {
    const auto same = std::find_if(ports.begin(), port, [&](const Port& other) {
      return other.number != 0 && other.number == port->number;
    });
    if (same == port) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(same->flag, " and ", port->flag, " are both ", port->number));
  }
  boost::system::error_code no_address;
  boost::asio::ip::make_address(flags.host, no_address);
  if (!listens && no_address) {
    return absl::InvalidArgumentError(
        absl::StrCat("--host ", flags.host, ": that is not an IP address; for example 127.0.0.1"));
  }
  for (const Port& port : ports) {
    const absl::Status free = rpc::CheckPort(flags.host, static_cast<std::uint16_t>(port.number));
    if (free.ok()) continue;
    return absl::Status(
        free.code(),
        absl::StrCat("cannot listen on ", HostPort(flags.host, static_cast<int>(port.number)), " (",
                     port.what, "): ", free.message(), "; choose another by ",
                     absl::IsUnavailable(free) ? port.flag : "--host"));
  }
  return absl::OkStatus();
}

std::string HostPort(const std::string& host, int port) {
  const bool ipv6 = host.find(':') != std::string::npos;
  return ipv6 ? absl::StrCat("[", host, "]:", port) : absl::StrCat(host, ":", port);
}

absl::Status WriteReadyFile(const std::string& path,
                            const std::vector<std::pair<std::string, int>>& ports) {
  if (path.empty()) return absl::OkStatus();
  const std::string draft = absl::StrCat(path, ".", getpid(), ".tmp");
  std::ofstream out(draft, std::ios::trunc);
  out << "{";
  for (const auto& [name, port] : ports) out << absl::StrFormat("\"%s\":%d,", name, port);
  out << absl::StrFormat("\"pid\":%d}\n", getpid());
  out.close();
  std::error_code error;
  if (out) std::filesystem::rename(draft, path, error);
  if (out && !error) return absl::OkStatus();
  std::filesystem::remove(draft, error);
  return absl::UnavailableError("the ready file '" + path + "' cannot be written");
}

}  // namespace flotilla::cli
