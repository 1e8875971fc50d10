#include "cli/serve.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "cli/observed_executor.h"
#include "cli/serve_metrics.h"
#include "cli/signals.h"
#include "common/obs/log.h"
#include "common/rt/clock.h"
#include "model/chat_template.h"
#include "model/config.h"
#include "model/content_hash.h"
#include "model/gguf.h"
#include "model/tokenizer.h"
#include "router/grpc/server.h"
#include "router/http/server.h"
#include "router/service.h"
#include "scheduler/server/engine_loop.h"
#include "worker/in_process_executor.h"

namespace flotilla {
namespace {

constexpr char kTemplateKey[] = "tokenizer.chat_template";
// What connections get to send their last bytes once all requests have ended.
constexpr absl::Duration kCloseGrace = absl::Seconds(2);

absl::StatusOr<RankOptions> MakeRankOptions(const ServeFlags& flags, const std::string& model_id) {
  absl::StatusOr<kernels::Isa> isa = kernels::ParseIsa(flags.cpu_isa);
  if (!isa.ok()) return isa.status();
  RankOptions options;
  options.model_id = model_id;
  options.recipe = flags.compute == "fp32" ? Recipe::kFp32 : Recipe::kAccurate;
  options.kv_format = flags.kv_type == "fp32" ? kernels::KvFormat::kF32 : kernels::KvFormat::kBf16;
  options.isa = *isa;
  options.threads = static_cast<int>(flags.threads);
  options.kv_blocks = static_cast<std::uint32_t>(flags.kv_blocks);
  options.max_context = static_cast<std::uint32_t>(flags.max_model_len);
  options.max_step_tokens = static_cast<std::uint32_t>(flags.max_batch_tokens);
  options.max_branches = static_cast<std::uint32_t>(flags.max_seqs);
  options.tiers = {.host_blocks = static_cast<std::uint32_t>(flags.host_blocks),
                   .disk_blocks = static_cast<std::uint32_t>(flags.disk_blocks),
                   .disk_directory = flags.disk_directory};
  options.speculation = flags.speculation == "ngram"   ? Speculation::kNgram
                        : flags.speculation == "draft" ? Speculation::kDraft
                                                       : Speculation::kOff;
  options.draft_tokens = static_cast<std::uint32_t>(flags.draft_tokens);
  options.draft_layers = static_cast<std::uint32_t>(flags.draft_layers);
  return options;
}

// "NAME=WEIGHT,..."; INVALID_ARGUMENT names the entry that is not.
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

absl::StatusOr<InProcessEngineOptions> MakeEngineOptions(const ServeFlags& flags,
                                                         const std::string& model_id,
                                                         const GgufFile& file) {
  InProcessEngineOptions options;
  auto weights = ParseWeights(flags.tenant_weights);
  if (!weights.ok()) return weights.status();
  options.policy = flags.policy;
  options.core.fair_share = flags.fair_share;
  options.core.tenant_weights = *std::move(weights);
  options.core.itl_target_ns = flags.itl_target_ms * 1'000'000;
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
  options.model_id = model_id;
  options.tokenizer_hash = TokenizerHash(file);
  return options;
}

// The model's chat template; none when the file has none.
absl::StatusOr<std::optional<ChatTemplate>> LoadChatTemplate(const GgufFile& file) {
  if (file.Find(kTemplateKey) == nullptr) return std::nullopt;
  absl::StatusOr<std::string_view> source = file.GetString(kTemplateKey);
  if (!source.ok()) return source.status();
  absl::StatusOr<ChatTemplate> chat_template = ChatTemplate::Compile(*source);
  if (!chat_template.ok()) return chat_template.status();
  return *std::move(chat_template);
}

std::string HostPort(const std::string& host, int port) {
  const bool ipv6 = host.find(':') != std::string::npos;
  return ipv6 ? absl::StrCat("[", host, "]:", port) : absl::StrCat(host, ":", port);
}

// Readers see the whole file or none.
absl::Status WriteReadyFile(const std::string& path, int http_port, int grpc_port) {
  const std::string draft = absl::StrCat(path, ".", getpid(), ".tmp");
  std::ofstream out(draft, std::ios::trunc);
  out << absl::StrFormat("{\"http\":%d,\"grpc\":%d,\"pid\":%d}\n", http_port, grpc_port, getpid());
  out.close();
  std::error_code error;
  if (out) std::filesystem::rename(draft, path, error);
  if (out && !error) return absl::OkStatus();
  std::filesystem::remove(draft, error);
  return absl::UnavailableError("the ready file '" + path + "' cannot be written");
}

void LogPreemption(Logger& log, const Preemption& p) {
  const auto id = [](const RequestId& request) {
    return absl::StrCat(absl::Hex(request.incarnation), "-", request.counter);
  };
  log.Debug("preempted", {{"request", id(p.victim)},
                          {"for", id(p.winner)},
                          {"mode", ModeName(p.reason)},
                          {"reason", ReasonName(p.reason)},
                          {"victim", p.decoding ? "decode" : "prefill"},
                          {"blocks", p.blocks},
                          {"swapped_blocks", p.swapped_blocks},
                          {"swap_us_per_block", p.swap_ns / 1000},
                          {"compute_us_per_block", p.recompute_ns / 1000},
                          {"cost_ms", p.cost_ns / 1'000'000}});
}

// The roles of one process, joined; members are destroyed from last to first.
class LocalFleet {
 public:
  explicit LocalFleet(Logger* log) : log_(log) {}

  // Loads the model and starts all roles; returns when requests are served.
  absl::Status Start(const ServeFlags& flags, const std::string& version);

  // Waits for a signal and ends in order: refuse, finish, close.
  void RunUntilStopped(Signals& signals, absl::Duration drain);

 private:
  absl::Status StartEngine(const ServeFlags& flags, const std::string& version);
  absl::Status StartFronts(const ServeFlags& flags);
  void PrintBanner(const ServeFlags& flags) const;

  Logger* const log_;
  const SteadyClock clock_;
  std::string model_id_;
  std::string isa_;                       // the instruction path's name
  std::shared_ptr<const GgufFile> file_;  // until the executor has loaded it
  std::vector<TokenId> end_tokens_;       // the model's own
  std::optional<Tokenizer> tokenizer_;
  std::optional<ChatTemplate> chat_template_;
  std::unique_ptr<ServeMetrics> metrics_;
  std::unique_ptr<InProcessExecutor> executor_;
  std::unique_ptr<ObservedExecutor> observed_;
  std::unique_ptr<InProcessEngine> engine_;
  std::unique_ptr<InferenceService> service_;
  std::unique_ptr<GrpcServer> grpc_;
  std::unique_ptr<HttpServer> http_;
  std::uint16_t http_port_ = 0;
};

absl::Status LocalFleet::Start(const ServeFlags& flags, const std::string& version) {
  model_id_ = flags.served_model_name.empty() ? std::filesystem::path(flags.model).stem().string()
                                              : flags.served_model_name;
  absl::StatusOr<GgufFile> file = GgufFile::Open(flags.model);
  if (!file.ok()) return file.status();
  file_ = std::make_shared<const GgufFile>(*std::move(file));

  absl::StatusOr<ModelConfig> config = LoadConfig(*file_);
  if (!config.ok()) return config.status();
  end_tokens_ = config->stop_ids;
  absl::StatusOr<Tokenizer> tokenizer = Tokenizer::FromGguf(*file_);
  if (!tokenizer.ok()) return tokenizer.status();
  tokenizer_.emplace(*std::move(tokenizer));
  absl::StatusOr<std::optional<ChatTemplate>> chat_template = LoadChatTemplate(*file_);
  if (chat_template.ok()) {
    chat_template_ = *std::move(chat_template);
  } else {
    log_->Warning("chat template not usable, chats are refused",
                  {{"reason", chat_template.status()}});
  }

  if (absl::Status status = StartEngine(flags, version); !status.ok()) return status;
  if (absl::Status status = StartFronts(flags); !status.ok()) return status;
  if (!flags.ready_file.empty()) {
    absl::Status status = WriteReadyFile(flags.ready_file, http_port_, grpc_->port());
    if (!status.ok()) return status;
  }
  PrintBanner(flags);
  return absl::OkStatus();
}

absl::Status LocalFleet::StartEngine(const ServeFlags& flags, const std::string& version) {
  absl::StatusOr<RankOptions> options = MakeRankOptions(flags, model_id_);
  if (!options.ok()) return options.status();
  isa_ = std::string(kernels::GetOps(options->isa).name);
  metrics_ = std::make_unique<ServeMetrics>(
      ServeMetrics::Config{.model = model_id_,
                           .version = version,
                           .kv_type = flags.kv_type,
                           .kv_blocks = static_cast<std::uint32_t>(flags.kv_blocks),
                           .block_tokens = static_cast<std::uint32_t>(flags.block_tokens)});
  executor_ = std::make_unique<InProcessExecutor>(file_, *options, &clock_);
  observed_ = std::make_unique<ObservedExecutor>(
      executor_.get(), [metrics = metrics_.get()](const StepResult& r) { metrics->OnStep(r); });
  absl::StatusOr<InProcessEngineOptions> engine = MakeEngineOptions(flags, model_id_, *file_);
  if (!engine.ok()) return engine.status();
  engine->on_preemption = [log = log_](const Preemption& p) { LogPreemption(*log, p); };
  engine_ = std::make_unique<InProcessEngine>(*std::move(engine), observed_.get(), &clock_);
  file_.reset();
  metrics_->Watch(&engine_->probe());
  if (absl::Status status = engine_->Start(); !status.ok()) return status;
  return engine_->WaitReady();
}

absl::Status LocalFleet::StartFronts(const ServeFlags& flags) {
  ServiceOptions service;
  service.model_id = model_id_;
  service.end_tokens = end_tokens_;
  service.created_s = absl::ToUnixSeconds(absl::Now());
  service_ = InferenceService::Create(std::move(service),
                                      {.engine = engine_.get(),
                                       .tokenizer = &*tokenizer_,
                                       .chat_template = chat_template_ ? &*chat_template_ : nullptr,
                                       .clock = &clock_,
                                       .probe = metrics_.get()});

  GrpcOptions grpc_options;
  grpc_options.host = flags.host;
  grpc_options.tenant_metadata = flags.tenant_header;
  grpc_options.port = static_cast<std::uint16_t>(flags.grpc_port);
  absl::StatusOr<std::unique_ptr<GrpcServer>> grpc =
      GrpcServer::Start(std::move(grpc_options), service_.get());
  if (!grpc.ok()) return grpc.status();
  grpc_ = *std::move(grpc);

  HttpServerOptions http_options;
  http_options.address = flags.host;
  http_options.port = static_cast<std::uint16_t>(flags.http_port);
  http_options.lenient = flags.lenient;
  http_options.tenant_header = flags.tenant_header;
  http_options.metrics = [metrics = metrics_.get()] { return metrics->Render(); };
  http_options.probe = metrics_.get();
  http_ = HttpServer::Create(std::move(http_options), service_.get());
  absl::StatusOr<std::uint16_t> http_port = http_->Start();
  if (!http_port.ok()) return http_port.status();
  http_port_ = *http_port;
  return absl::OkStatus();
}

void LocalFleet::PrintBanner(const ServeFlags& flags) const {
  const std::string http = HostPort(flags.host, http_port_);
  absl::FPrintF(
      stderr,
      "\nflotilla serves %s\n"
      "  compute  %s, KV %s, %d blocks of %d tokens, instruction path %s\n"
      "  OpenAI   http://%s/v1\n"
      "  gRPC     %s\n"
      "  metrics  http://%s/metrics\n\n"
      "Try:\n"
      "  curl http://%s/v1/chat/completions -H 'Content-Type: application/json' "
      "-d '{\"model\":\"%s\",\"messages\":[{\"role\":\"user\",\"content\":\"Hello!\"}]}'\n\n",
      model_id_, flags.compute, flags.kv_type, flags.kv_blocks, flags.block_tokens, isa_, http,
      grpc_->address(), http, http, model_id_);
  absl::PrintF("ready http=%s grpc=%s\n", http, grpc_->address());
  std::fflush(stdout);
}

void LocalFleet::RunUntilStopped(Signals& signals, absl::Duration drain) {
  const int number = signals.WaitForStop();
  log_->Info("stopping", {{"signal", number}, {"drain_seconds", absl::ToDoubleSeconds(drain)}});
  engine_->Drain([&signals] { signals.Wake(); });
  switch (signals.Wait(drain)) {
    case Signals::Event::kWoken:
      break;
    case Signals::Event::kTimeout:
      log_->Warning("requests are still running, ending them");
      engine_->Stop();
      break;
    case Signals::Event::kStop:
      std::_Exit(130);  // asked twice: at once
  }
  grpc_->Stop(kCloseGrace);
  http_->Stop(kCloseGrace);
}

}  // namespace

absl::Status RunServe(const ServeFlags& flags, const std::string& version) {
  Signals signals;
  absl::StatusOr<LogLevel> level = ParseLogLevel(flags.log_level);
  if (!level.ok()) return level.status();
  Logger log(*level);
  LocalFleet fleet(&log);
  if (absl::Status status = fleet.Start(flags, version); !status.ok()) return status;
  fleet.RunUntilStopped(signals, absl::Seconds(flags.drain_seconds));
  return absl::OkStatus();
}

}  // namespace flotilla
