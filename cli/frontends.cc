#include "cli/frontends.h"

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "cli/request_log.h"
#include "cli/role_options.h"
#include "common/auth/tls_files.h"
#include "common/rt/cpu_quota.h"
#include "common/rt/descriptors.h"
#include "model/chat_template.h"
#include "model/stop_tokens.h"
#include "model/text/tokenizer.h"
#include "router/files/files_service.h"
#include "router/files/metrics.h"
#include "router/grpc/server.h"
#include "router/http/server.h"
#include "router/key_gate.h"
#include "router/service.h"
#include "router/tls_metrics.h"
#include "rpc/endpoint.h"

namespace flotilla::cli {
namespace {

// This many of the process's file descriptors, or half of all if that is fewer, are not used
// for connections to the HTTP API. They are for gRPC's connections, files, the fleet's streams,
// and the spare descriptors that accept a connection when no other descriptor is left.
constexpr std::uint64_t kOtherDescriptors = 256;
constexpr std::size_t kSpareDescriptors = 16;
// The health port is for kubelets, Prometheus and a few people.
constexpr std::uint32_t kHealthConnections = 32;

// Turns text into a model's tokens and back.
struct ModelText {
  model::Tokenizer tokenizer;
  std::optional<model::ChatTemplate> chat_template;
  std::optional<model::ChatTemplate> tool_template;  // for requests with tools, if it has one
};

// The template that a model has beside its chat template for requests with tools, as transformers
// calls it.
std::optional<std::string> ToolTemplate(const TokenizerBundle& bundle) {
  const auto found =
      std::find_if(bundle.more_templates.begin(), bundle.more_templates.end(),
                   [](const NamedTemplate& named) { return named.name == "tool_use"; });
  return found == bundle.more_templates.end() ? std::nullopt : std::optional(found->text);
}

std::string TemplateNames(const TokenizerBundle& bundle) {
  std::string names;
  for (const NamedTemplate& named : bundle.more_templates) {
    absl::StrAppend(&names, names.empty() ? "" : ", ", named.name);
  }
  return names;
}

// What templates get for the date, as Python's strftime writes it.
std::string FormatNow(std::string_view format) {
  return absl::FormatTime(std::string(format), absl::Now(), absl::LocalTimeZone());
}

// The options without limits of keys.
router::ServiceOptions MakeServiceOptions(Logger* log, bool model_sampling) {
  router::ServiceOptions options;
  options.model_sampling = model_sampling;
  options.tokenizer_threads = TokenizerThreads(AvailableCpus());
  options.strftime_now = FormatNow;
  options.on_over = [log](const router::RequestRecord& record) { LogOver(*log, record); };
  return options;
}

class FrontendsImpl final : public Frontends {
 public:
  FrontendsImpl(const RoleFlags& flags, const Parts& parts)
      : flags_(flags),
        parts_(parts),
        files_metrics_(*parts.metrics),
        service_(router::InferenceService::Create(
            WithLimits(MakeServiceOptions(parts.log, flags.model_sampling)), parts.clock,
            parts.unknown)) {}

  absl::Status AddModel(const std::string& model_id, const TokenizerBundle& bundle, Engine* engine,
                        router::RouterMetrics* metrics) override {
    absl::StatusOr<model::Tokenizer> tokenizer = model::Tokenizer::Create(bundle);
    if (!tokenizer.ok()) return tokenizer.status();
    if (!bundle.chat_template.has_value() && !bundle.more_templates.empty()) {
      parts_.log->Warning(
          "none of the chat templates is called default, so chat requests are refused; "
          "--chat-template gives the model one",
          {{"model", model_id}, {"templates", TemplateNames(bundle)}});
    }
    texts_.push_back(std::make_unique<ModelText>(ModelText{
        *std::move(tokenizer),
        LoadTemplate(model_id, bundle.chat_template,
                     "the chat template cannot be used, so chat requests are refused"),
        LoadTemplate(model_id, ToolTemplate(bundle),
                     "the chat template for tools cannot be used, so the other one is")}));
    const ModelText& text = *texts_.back();
    service_->AddModel({.id = model_id,
                        .end_tokens = model::StopTokens(bundle),
                        .created_s = absl::ToUnixSeconds(absl::Now()),
                        .engine = engine,
                        .tokenizer = &text.tokenizer,
                        .chat_template = text.chat_template ? &*text.chat_template : nullptr,
                        .tool_template = text.tool_template ? &*text.tool_template : nullptr,
                        .sampling = SamplingOf(model_id, bundle),
                        .metrics = metrics});
    return absl::OkStatus();
  }

  router::InferenceService& service() override { return *service_; }

  absl::Status Listen() override {
    if (absl::Status status = OpenGate(); !status.ok()) return status;
    if (absl::Status status = OpenTls(); !status.ok()) return status;
    if (absl::Status status = OpenFiles(); !status.ok()) return status;

    router::GrpcOptions grpc_options;
    grpc_options.gate = gate_.get();
    grpc_options.tls = tls_.get();
    grpc_options.poller = parts_.poller;
    grpc_options.host = flags_.host;
    grpc_options.tenant_metadata = flags_.tenant_header;
    grpc_options.port = static_cast<std::uint16_t>(flags_.grpc_port);
    absl::StatusOr<std::unique_ptr<router::GrpcServer>> grpc =
        router::GrpcServer::Start(std::move(grpc_options), service_.get());
    if (!grpc.ok()) return grpc.status();
    grpc_ = *std::move(grpc);

    absl::StatusOr<std::uint16_t> http_port = ListenHttp();
    if (!http_port.ok()) return http_port.status();
    http_port_ = *http_port;
    return ListenHealth();
  }

  std::uint16_t http_port() const override { return http_port_; }
  std::optional<std::uint16_t> health_port() const override { return health_port_; }
  std::uint16_t grpc_port() const override { return grpc_->port(); }
  std::string grpc_address() const override { return grpc_->address(); }
  void StopBatches() override {
    if (files_ != nullptr) files_->StopBatches();
  }
  void Stop(absl::Duration grace) override {
    grpc_->Stop(grace);
    http_->Stop(grace);
    if (health_ != nullptr) health_->Stop(grace);
  }

 private:
  // Returns the template, or none if there is none or it cannot be used; `refusal` then goes to the
  // log.
  std::optional<model::ChatTemplate> LoadTemplate(const std::string& model_id,
                                                  const std::optional<std::string>& source,
                                                  std::string_view refusal) {
    if (!source.has_value()) return std::nullopt;
    absl::StatusOr<model::ChatTemplate> made = model::ChatTemplate::Compile(*source);
    if (made.ok()) return *std::move(made);
    parts_.log->Warning(refusal, {{"model", model_id}, {"reason", made.status()}});
    return std::nullopt;
  }

  // What the model's files recommend. What is wrong there is left out, and the log says so.
  std::vector<SamplingDefault> SamplingOf(const std::string& model_id,
                                          const TokenizerBundle& bundle) {
    std::vector<std::string> refused;
    std::vector<SamplingDefault> usable = router::UsableSampling(
        bundle.sampling, static_cast<std::uint32_t>(bundle.tokens.size()), refused);
    for (const std::string& reason : refused) {
      parts_.log->Warning("a value of the model's own sampling is ignored",
                          {{"model", model_id}, {"reason", reason}});
    }
    return usable;
  }

  // Requests begin only within the limits of their key's owner, once the gate is open.
  router::ServiceOptions WithLimits(router::ServiceOptions options) {
    options.permit = [this](const std::string& name,
                            std::uint32_t prompts) -> absl::StatusOr<std::shared_ptr<void>> {
      if (gate_ == nullptr) return std::shared_ptr<void>();
      return gate_->Begin(name, prompts);
    };
    options.on_over = [this,
                       log = std::move(options.on_over)](const router::RequestRecord& record) {
      log(record);
      if (gate_ == nullptr || record.background) return;
      gate_->Use(std::string(record.tenant),
                 record.usage.prompt_tokens + record.usage.output_tokens);
    };
    return options;
  }

  // The options that the API's port and the health port share.
  router::HttpServerOptions CommonOptions() const {
    router::HttpServerOptions options;
    options.address = flags_.host;
    options.allowed_hosts = absl::StrSplit(flags_.allowed_hosts, ',', absl::SkipWhitespace());
    options.metrics = [metrics = parts_.metrics] { return metrics->Render(); };
    options.spare_descriptors = kSpareDescriptors;
    return options;
  }

  absl::StatusOr<std::uint16_t> ListenHttp() {
    router::HttpServerOptions http_options = CommonOptions();
    http_options.port = static_cast<std::uint16_t>(flags_.http_port);
    http_options.permissive = flags_.permissive;
    http_options.tenant_header = flags_.tenant_header;
    http_options.gate = gate_.get();
    http_options.tls = tls_.get();
    http_options.on_handshake = [this](bool done) { tls_metrics_->OnHandshake(done); };
    http_options.admin = flags_.admin;
    http_options.files = files_.get();
    http_options.files_metrics = &files_metrics_;
    absl::StatusOr<router::CorsPolicy> pages = router::CorsPolicy::Create(flags_.cors_origins);
    if (!pages.ok()) {
      return absl::InvalidArgumentError(absl::StrCat("--cors-origin: ", pages.status().message()));
    }
    http_options.pages = *std::move(pages);
    http_options.refusals = parts_.unknown;
    const std::uint64_t limit = DescriptorLimit();
    const std::uint64_t others = std::min(kOtherDescriptors, limit / 2);
    http_options.max_connections =
        static_cast<std::uint32_t>(std::min<std::uint64_t>(flags_.max_connections, limit - others));
    http_ = router::HttpServer::Create(std::move(http_options), service_.get());
    return http_->Start();
  }

  absl::Status ListenHealth() {
    if (flags_.health_port < 0) return absl::OkStatus();
    router::HttpServerOptions options = CommonOptions();
    options.port = static_cast<std::uint16_t>(flags_.health_port);
    options.max_connections = kHealthConnections;
    options.health_only = true;
    health_ = router::HttpServer::Create(std::move(options), service_.get());
    const absl::StatusOr<std::uint16_t> port = health_->Start();
    if (!port.ok()) return port.status();
    health_port_ = *port;
    return absl::OkStatus();
  }

  absl::Status OpenFiles() {
    if (flags_.files_dir.empty()) return absl::OkStatus();
    constexpr std::int64_t kDaySeconds = 86'400;
    router::FilesOptions options;
    options.folder = flags_.files_dir;
    options.limits.file_bytes = static_cast<std::uint64_t>(flags_.file_mib) << 20;
    options.limits.tenant_bytes = static_cast<std::uint64_t>(flags_.files_mib) << 20;
    options.limits.tenant_files = static_cast<std::uint64_t>(flags_.files_count);
    options.limits.life_s = flags_.files_days * kDaySeconds;
    options.concurrency = static_cast<std::uint32_t>(flags_.batch_concurrency);
    options.permissive = flags_.permissive;
    options.now_s = [] { return absl::ToUnixSeconds(absl::Now()); };
    absl::StatusOr<std::unique_ptr<router::FilesService>> files =
        router::FilesService::Open(std::move(options), {.service = service_.get(),
                                                        .clock = parts_.clock,
                                                        .log = parts_.log,
                                                        .metrics = &files_metrics_});
    if (!files.ok()) {
      return absl::Status(files.status().code(),
                          absl::StrCat("--files-dir: ", files.status().message()));
    }
    files_ = *std::move(files);
    return absl::OkStatus();
  }

  absl::Status OpenGate() {
    if (flags_.admin && !flags_.api_keys_file.empty()) {
      return absl::InvalidArgumentError(
          "--admin and --api-keys-file: the keys of the class admin say who is one");
    }
    if (flags_.admin && !rpc::IsLoopback(flags_.host)) {
      return absl::InvalidArgumentError(
          absl::StrCat("--admin with --host ", flags_.host,
                       ": without --api-keys-file it needs a loopback address"));
    }
    if (flags_.api_keys_file.empty()) return absl::OkStatus();
    if (!flags_.tenant_header.empty()) {
      return absl::InvalidArgumentError(
          "--tenant-header and --api-keys-file: the name of a key is the tenant");
    }
    absl::StatusOr<std::unique_ptr<router::KeyGate>> gate = router::KeyGate::Open(
        {.path = flags_.api_keys_file, .clock = parts_.clock, .log = parts_.log}, parts_.unknown);
    if (!gate.ok()) return gate.status();
    gate_ = *std::move(gate);
    return absl::OkStatus();
  }

  // Opens the certificate of the API's ports, if there is one.
  absl::Status OpenTls() {
    if (!flags_.api_tls_cert.empty()) {
      absl::StatusOr<std::unique_ptr<TlsFiles>> files =
          TlsFiles::Open({.certificate = flags_.api_tls_cert,
                          .key = flags_.api_tls_key,
                          .authorities = flags_.api_tls_ca,
                          .offers = {"http/1.1"},
                          .clock = parts_.clock,
                          .log = parts_.log});
      if (!files.ok()) return files.status();
      tls_ = *std::move(files);
    }
    tls_metrics_ = std::make_unique<router::TlsMetrics>(*parts_.metrics, tls_.get());
    return absl::OkStatus();
  }

  const RoleFlags flags_;
  const Parts parts_;
  router::FilesMetrics files_metrics_;
  // These members are destroyed from last to first.
  std::vector<std::unique_ptr<const ModelText>> texts_;
  std::unique_ptr<router::KeyGate> gate_;  // null: clients need no key
  std::unique_ptr<TlsFiles> tls_;          // null: clients' connections are not encrypted
  std::unique_ptr<router::TlsMetrics> tls_metrics_;
  std::unique_ptr<router::InferenceService> service_;
  std::unique_ptr<router::FilesService> files_;  // null: without --files-dir
  std::unique_ptr<router::GrpcServer> grpc_;
  std::unique_ptr<router::HttpServer> http_;
  std::unique_ptr<router::HttpServer> health_;  // null: there is no health port
  std::uint16_t http_port_ = 0;
  std::optional<std::uint16_t> health_port_;
};

}  // namespace

std::uint32_t TokenizerThreads(int cpus) { return std::clamp(cpus / 4, 3, 8); }

std::unique_ptr<Frontends> Frontends::Create(const RoleFlags& flags, const Parts& parts) {
  return std::make_unique<FrontendsImpl>(flags, parts);
}

absl::Status AnnounceFrontends(const RoleFlags& flags, const Frontends& frontends) {
  std::vector<std::pair<std::string, int>> ports = {{"http", frontends.http_port()},
                                                    {"grpc", frontends.grpc_port()}};
  std::string health;
  if (const std::optional<std::uint16_t> port = frontends.health_port(); port.has_value()) {
    ports.emplace_back("health", *port);
    health = absl::StrCat(" health=", HostPort(flags.host, *port));
  }
  if (absl::Status written = WriteReadyFile(flags.ready_file, ports); !written.ok()) return written;
  absl::PrintF("ready http=%s grpc=%s%s\n", HostPort(flags.host, frontends.http_port()),
               frontends.grpc_address(), health);
  std::fflush(stdout);
  return absl::OkStatus();
}

std::string UsageText(const RoleFlags& flags, const std::string& model_id,
                      const Frontends& frontends) {
  const bool tls = !flags.api_tls_cert.empty();
  const std::string address = HostPort(flags.host, frontends.http_port());
  const std::string http = absl::StrCat(tls ? "https://" : "http://", address);
  return absl::StrFormat(
      "  OpenAI   %s/v1\n"
      "  gRPC     %s%s\n"
      "  metrics  %s/metrics\n\n"
      "Try:\n"
      "  curl %s/v1/chat/completions -H 'Content-Type: application/json' "
      "-d '{\"model\":\"%s\",\"temperature\":0,"
      "\"messages\":[{\"role\":\"user\",\"content\":\"Hello!\"}]}'\n\n",
      http, frontends.grpc_address(), tls ? " (TLS)" : "", http, http, model_id);
}

}  // namespace flotilla::cli
