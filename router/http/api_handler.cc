#include "router/http/api_handler.h"

#include <array>
#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "common/types/text.h"
#include "router/errors.h"
#include "router/http/api_error.h"
#include "router/http/file_objects.h"
#include "router/http/files_api.h"
#include "router/http/json_text.h"
#include "router/http/openai_exchange.h"
#include "router/http/openai_request.h"
#include "router/http/openapi.h"
#include "router/http/pool_exchange.h"
#include "router/http/route_hint.h"
#include "router/metrics.h"
#include "router/model_name.h"
#include "router/utf8.h"

namespace flotilla::router {
namespace {

constexpr char kJson[] = "application/json";
constexpr std::string_view kGet = "GET", kHead = "HEAD", kPost = "POST", kOptions = "OPTIONS";
constexpr std::string_view kId = "{id}";
constexpr std::string_view kModel = "/v1/models/{id}", kAbort = "/admin/abort/{id}";

bool IsJson(std::string_view content_type) {
  const std::string_view type = content_type.substr(0, content_type.find(';'));
  return absl::EqualsIgnoreCase(absl::StripAsciiWhitespace({type.data(), type.size()}), kJson);
}

HttpRefusal ToRefusal(const absl::Status& status, int http_status) {
  return {.status = http_status, .body = ErrorJson(status), .headers = ErrorHeaders(status)};
}
HttpRefusal ToRefusal(const absl::Status& status) {
  return ToRefusal(status, HttpStatusOf(status));
}

HttpRefusal RefuseHost(std::string_view host) {
  return ToRefusal(InvalidArgument("a server on a loopback address does not answer the Host '",
                                   RepairUtf8(host.substr(0, 200)),
                                   "': ask localhost, or start it with --allowed-hosts"),
                   403);
}

void AppendModel(const ModelInfo& model, std::string& out) {
  out += R"({"id":)";
  AppendJsonString(model.limits.id, out);
  out += Cat(R"(,"object":"model","created":)", model.created_s,
             R"(,"owned_by":"flotilla","max_model_len":)", model.limits.max_context,
             R"(,"model_sampling":{)");
  for (const SamplingDefault& one : model.sampling) {
    if (out.back() != '{') out.push_back(',');
    AppendJsonString(one.name, out);
    out.push_back(':');
    AppendJsonFloat(static_cast<float>(one.value), out);
  }
  out += Cat(R"(},"model_sampling_used":)", model.limits.sampling.empty() ? "false" : "true", "}");
}

// Bodies up to this size are parsed, and answers up to this size are written, on the I/O thread;
// this takes a millisecond or two. Larger ones go to the pool, so that no request on the I/O
// thread waits for them.
constexpr std::size_t kInlineBytes = 64 << 10;
// The bytes of a token's id and its comma in an answer.
constexpr std::size_t kTokenBytes = 7;
// The most bytes that answers of the pool hold until they are sent, over all connections.
constexpr std::size_t kAnswerBytes = 32u << 20;

// A function for the I/O loop's thread, which runs `work` on the exchange if that still exists.
// If it cannot get memory, only this exchange fails.
template <class Work>
std::function<void()> OnIoLoop(std::weak_ptr<PoolExchange*> self, Work work) {
  return [self = std::move(self), work = std::move(work)]() mutable {
    const std::shared_ptr<PoolExchange*> waiting = self.lock();
    if (waiting == nullptr) return;
    HttpReply& reply = (*waiting)->reply();
    try {
      work(**waiting);
    } catch (const std::bad_alloc&) {
      reply.Fail();
    }
  };
}

std::int64_t WaitedNs(const HttpRequest& request) {
  return std::chrono::nanoseconds(std::chrono::steady_clock::now() - request.came).count();
}

class ApiHandler final : public HttpHandler {
 public:
  ApiHandler(ApiOptions options, InferenceService* service, IoLoop* io_loop)
      : options_(std::move(options)),
        parse_{.permissive = options_.permissive, .max_prompts = options_.max_prompts},
        service_(*service),
        io_loop_(*io_loop),
        files_(options_.files, options_.files_metrics, options_.dispatcher) {}

  HttpAdmission Admit(const HttpHead& head) override {
    HttpAdmission admission = AdmitCaller(head);
    AdmitUpload(head, admission);
    admission.headers = options_.pages.AnswerHeaders(head.origin);
    return admission;
  }
  std::unique_ptr<HttpExchange> Handle(HttpRequest request, HttpReply& reply) override;

 private:
  HttpAdmission AdmitCaller(const HttpHead& head);
  // Gives the body of an upload to what takes it.
  void AdmitUpload(const HttpHead& head, HttpAdmission& admission);

  using Answer = std::unique_ptr<HttpExchange> (ApiHandler::*)(HttpRequest&, HttpReply&);
  // The clients that may use a route: those with a key of an admin, those with a key, or anybody.
  // Without keys everybody has the rights of a key, and with ApiOptions::admin those of an admin.
  enum class Access : std::uint8_t { kAdmin, kKey, kAnybody };
  struct Route {
    std::string_view method, path;  // {id} in a path stands for an id
    Access access;
    Answer answer;

    bool Answers(std::string_view asked) const {
      return asked == method || (asked == kHead && method == kGet);
    }
    // The id in `asked`; empty if the route has none. None: the route is another one.
    std::optional<std::string_view> IdOf(std::string_view asked) const {
      const std::size_t at = path.find(kId);
      if (at == std::string_view::npos) {
        return asked == path ? std::optional(std::string_view()) : std::nullopt;
      }
      const std::string_view rest = path.substr(at + kId.size());
      if (asked.size() <= at + rest.size() || !asked.starts_with(path.substr(0, at)) ||
          !asked.ends_with(rest)) {
        return std::nullopt;
      }
      const std::string_view id = asked.substr(at, asked.size() - at - rest.size());
      // Only the names of models have slashes.
      if (path != kModel && id.find('/') != std::string_view::npos) return std::nullopt;
      return id;
    }
    bool Matches(std::string_view asked) const { return IdOf(asked).has_value(); }
    bool IsUpload() const { return answer == &ApiHandler::Files<&FilesApi::Upload>; }
  };
  static const std::array<Route, 21> kRoutes;

  HttpRefusal RefuseMethod(std::string_view path) const;
  // The route that answers `method` at `path`. If there is none, another route of that path.
  const Route* Find(std::string_view method, std::string_view path) const;
  // Whether this server has the route at all.
  bool Has(const Route& route) const {
    if (options_.health_only) return route.access == Access::kAnybody;
    return route.access != Access::kAdmin || options_.gate != nullptr || options_.admin;
  }
  // Suggests the path that a client may have meant, or says where all paths are listed.
  std::string PathHint(std::string_view asked) const;
  absl::Status NothingAt(std::string_view path) const {
    return absl::NotFoundError(
        Cat("there is nothing at ", RepairUtf8(path.substr(0, 200)), PathHint(path)));
  }

  std::unique_ptr<HttpExchange> Refuse(const absl::Status& status, HttpReply& reply) {
    if (options_.refusals != nullptr) options_.refusals->OnRefused(status);
    SendError(status, reply);
    return nullptr;
  }
  // Reads the body with `parse`: here, or on the pool if it is long, where it is then destroyed.
  // `next` then continues with the parsed request.
  template <class Parsed>
  std::unique_ptr<HttpExchange> Parse(
      HttpRequest request, HttpReply& reply,
      std::function<absl::StatusOr<Parsed>(const HttpRequest&)> parse,
      std::unique_ptr<HttpExchange> (ApiHandler::*next)(Parsed, HttpReply&));
  // Answers with the text that `write` makes, which has about `bytes` bytes. If these are many,
  // `write` runs on the pool, charged to the tenant. If too much waits to be sent already, the
  // answer is 503.
  void Send(PoolExchange& exchange, const std::string& tenant, std::size_t bytes,
            std::function<std::string()> write);

  template <auto method>
  std::unique_ptr<HttpExchange> Files(HttpRequest& request, HttpReply& reply) {
    const Route* const route = Find(request.method, request.path);
    return (files_.*method)(request, DecodePercent(*route->IdOf(request.path)), reply);
  }
  template <class Body>
  std::unique_ptr<HttpExchange> Generate(Body parse_body, HttpRequest& request, HttpReply& reply);
  std::unique_ptr<HttpExchange> Chat(HttpRequest& request, HttpReply& reply) {
    return Generate(&ParseChatCompletion, request, reply);
  }
  std::unique_ptr<HttpExchange> Complete(HttpRequest& request, HttpReply& reply) {
    return Generate(&ParseCompletion, request, reply);
  }
  std::unique_ptr<HttpExchange> Start(OpenAiBody<GenerateRequest> body, HttpReply& reply) {
    return OpenAiExchange::Start(std::move(body), absl::ToUnixSeconds(absl::Now()), service_,
                                 io_loop_, reply);
  }
  std::unique_ptr<HttpExchange> Tokenize(HttpRequest& request, HttpReply& reply);
  std::unique_ptr<HttpExchange> RunTokenize(TokenizeRequest tokenize, HttpReply& reply);
  std::unique_ptr<HttpExchange> Detokenize(HttpRequest& request, HttpReply& reply);
  std::unique_ptr<HttpExchange> RunDetokenize(DetokenizeRequest detokenize, HttpReply& reply);
  std::unique_ptr<HttpExchange> ListModels(HttpRequest& request, HttpReply& reply);
  std::unique_ptr<HttpExchange> GetModel(HttpRequest& request, HttpReply& reply);
  std::unique_ptr<HttpExchange> Abort(HttpRequest& request, HttpReply& reply);
  std::unique_ptr<HttpExchange> Health(HttpRequest& request, HttpReply& reply);
  std::unique_ptr<HttpExchange> Ready(HttpRequest& request, HttpReply& reply);
  std::unique_ptr<HttpExchange> Metrics(HttpRequest& request, HttpReply& reply);
  std::unique_ptr<HttpExchange> OpenApi(HttpRequest& request, HttpReply& reply);
  std::unique_ptr<HttpExchange> Root(HttpRequest& request, HttpReply& reply);

  const ApiOptions options_;
  const ParseOptions parse_;
  MemoryBudget answers_{kAnswerBytes};
  InferenceService& service_;
  IoLoop& io_loop_;
  FilesApi files_;
};

const std::array<ApiHandler::Route, 21> ApiHandler::kRoutes = {{
    {"POST", "/v1/chat/completions", Access::kKey, &ApiHandler::Chat},
    {"POST", "/v1/completions", Access::kKey, &ApiHandler::Complete},
    {"GET", "/v1/models", Access::kKey, &ApiHandler::ListModels},
    {"GET", kModel, Access::kKey, &ApiHandler::GetModel},
    {"POST", "/v1/files", Access::kKey, &ApiHandler::Files<&FilesApi::Upload>},
    {"GET", "/v1/files", Access::kKey, &ApiHandler::Files<&FilesApi::ListFiles>},
    {"GET", "/v1/files/{id}", Access::kKey, &ApiHandler::Files<&FilesApi::GetFile>},
    {"DELETE", "/v1/files/{id}", Access::kKey, &ApiHandler::Files<&FilesApi::DeleteFile>},
    {"GET", "/v1/files/{id}/content", Access::kKey, &ApiHandler::Files<&FilesApi::GetContent>},
    {"POST", "/v1/batches", Access::kKey, &ApiHandler::Files<&FilesApi::CreateBatch>},
    {"GET", "/v1/batches", Access::kKey, &ApiHandler::Files<&FilesApi::ListBatches>},
    {"GET", "/v1/batches/{id}", Access::kKey, &ApiHandler::Files<&FilesApi::GetBatch>},
    {"POST", "/v1/batches/{id}/cancel", Access::kKey, &ApiHandler::Files<&FilesApi::CancelBatch>},
    {"POST", "/tokenize", Access::kKey, &ApiHandler::Tokenize},
    {"POST", "/detokenize", Access::kKey, &ApiHandler::Detokenize},
    {"POST", kAbort, Access::kAdmin, &ApiHandler::Abort},
    {"GET", "/health", Access::kAnybody, &ApiHandler::Health},
    {"GET", "/ready", Access::kAnybody, &ApiHandler::Ready},
    {"GET", "/metrics", Access::kAnybody, &ApiHandler::Metrics},
    {"GET", "/openapi.json", Access::kKey, &ApiHandler::OpenApi},
    {"GET", "/", Access::kKey, &ApiHandler::Root},
}};

const ApiHandler::Route* ApiHandler::Find(std::string_view method, std::string_view path) const {
  const Route* found = nullptr;
  for (const Route& route : kRoutes) {
    if (!route.Matches(path) || !Has(route)) continue;
    found = &route;
    if (route.Answers(method)) return found;
  }
  return found;
}

HttpRefusal ApiHandler::RefuseMethod(std::string_view path) const {
  std::string allowed, named;
  const auto add = [&](std::string_view method) {
    allowed += Cat(allowed.empty() ? "" : ", ", method);
    named += Cat(named.empty() ? "" : " and ", method);
  };
  for (const Route& route : kRoutes) {
    if (!route.Matches(path) || !Has(route)) continue;
    add(route.method);
    if (route.method == kGet) add(kHead);
  }
  return {.status = 405,
          .body = ErrorJson(InvalidArgument("this path answers ", named, " only")),
          .headers = {{"allow", allowed}}};
}

void ApiHandler::AdmitUpload(const HttpHead& head, HttpAdmission& admission) {
  const Route* const route = Find(head.method, head.path);
  if (admission.refusal || admission.preflight || !head.has_body || route == nullptr ||
      !route->IsUpload()) {
    return;
  }
  absl::StatusOr<std::unique_ptr<HttpUpload>> upload = files_.AdmitUpload(
      admission.caller ? admission.caller->name : std::string(head.tenant), head.content_type);
  if (upload.ok()) {
    admission.upload = *std::move(upload);
  } else {
    admission.refusal = ToRefusal(upload.status());
  }
}

HttpAdmission ApiHandler::AdmitCaller(const HttpHead& head) {
  if (!options_.hosts.Allows(head.host)) return {.refusal = RefuseHost(head.host)};
  // Browsers send no key with the question whether they may.
  if (head.method == kOptions && head.asks_for_page && !head.has_body &&
      options_.pages.Allows(head.origin)) {
    return {.preflight = true};
  }
  const Route* route = Find(head.method, head.path);
  HttpAdmission admission;
  // A path that does not exist needs a key, too, so that nobody can find paths by trying.
  if (options_.gate != nullptr && (route == nullptr || route->access != Access::kAnybody)) {
    absl::StatusOr<KeyOwner> caller = options_.gate->Admit(head.authorization);
    if (!caller.ok()) return {.refusal = ToRefusal(caller.status())};
    if (route != nullptr && route->access == Access::kAdmin && !caller->is_admin) {
      return {.refusal = ToRefusal(
                  absl::PermissionDeniedError(Cat(route->path, " needs the key of an admin")))};
    }
    admission.caller = *std::move(caller);
  }
  if (head.has_body) {
    if (route == nullptr) {
      admission.refusal = ToRefusal(NothingAt(head.path));
    } else if (!route->Answers(head.method)) {
      admission.refusal = RefuseMethod(head.path);
    } else if (route->method != kPost) {
      admission.refusal = ToRefusal(InvalidArgument("this path takes no body"), 413);
    }
  }
  // Browsers let a page send forms and plain text to another site without asking it. Their type
  // is not JSON. Only a page that may read answers may send the form of a file.
  const bool is_form = route != nullptr && route->IsUpload() && options_.pages.Allows(head.origin);
  if (!admission.refusal && head.from_page && head.method == kPost && !is_form &&
      !IsJson(head.content_type)) {
    admission.refusal =
        ToRefusal(InvalidArgument("a request with an Origin needs the Content-Type ", kJson), 415);
  }
  return admission;
}

std::string ApiHandler::PathHint(std::string_view asked) const {
  std::vector<std::string_view> paths;
  for (const Route& route : kRoutes) {
    if (Has(route)) paths.push_back(route.path);
  }
  const std::string_view meant = NearestPath(asked, paths);
  if (!meant.empty()) return Cat("; did you mean ", meant, "?");
  return options_.health_only ? "" : "; GET / lists the paths";
}

std::unique_ptr<HttpExchange> ApiHandler::Handle(HttpRequest request, HttpReply& reply) {
  if (request.preflight) {
    reply.Send(200, "text/plain; charset=utf-8", "", CorsPolicy::PreflightHeaders());
    return nullptr;
  }
  const Route* route = Find(request.method, request.path);
  if (route == nullptr) {
    SendError(NothingAt(request.path), reply);
    return nullptr;
  }
  if (route->Answers(request.method)) return (this->*route->answer)(request, reply);
  HttpRefusal refusal = RefuseMethod(request.path);
  reply.Send(refusal.status, kJson, std::move(refusal.body), refusal.headers);
  return nullptr;
}

template <class Parsed>
std::unique_ptr<HttpExchange> ApiHandler::Parse(
    HttpRequest request, HttpReply& reply,
    std::function<absl::StatusOr<Parsed>(const HttpRequest&)> parse,
    std::unique_ptr<HttpExchange> (ApiHandler::*next)(Parsed, HttpReply&)) {
  if (request.body.size() <= kInlineBytes) {
    absl::StatusOr<Parsed> parsed = parse(request);
    if (parsed.ok()) return (this->*next)(*std::move(parsed), reply);
    SendError(parsed.status(), reply);
    return nullptr;
  }
  auto exchange = std::make_unique<PoolExchange>(reply);
  const std::string tenant = request.tenant;
  const std::size_t bytes = request.body.size();
  // The charge for a body that is being read ends here. From here on the pool's bounds count it.
  const MemoryCharge charge = std::move(request.charge);
  // A std::function must be copyable, so it holds the request by a pointer.
  auto shared = std::make_shared<HttpRequest>(std::move(request));
  auto work = [this, next, parse = std::move(parse), shared = std::move(shared),
               self = exchange->self()]() -> std::function<void()> {
    if (self.expired()) return [] {};
    auto parsed =
        std::make_shared<absl::StatusOr<Parsed>>(OrNoMemory([&] { return parse(*shared); }));
    // The handler lives as long as the exchanges do.
    return OnIoLoop(self, [this, next, parsed](PoolExchange& waiter) {
      if (!parsed->ok()) return SendError(parsed->status(), waiter.reply());
      waiter.GoOnAs((this->*next)(*std::move(*parsed), waiter.reply()));
    });
  };
  absl::Status status =
      service_.RunOnPool(tenant, bytes, io_loop_, std::move(work), exchange->abandoned());
  if (!status.ok()) return Refuse(status, reply);
  return exchange;
}

template <class Body>
std::unique_ptr<HttpExchange> ApiHandler::Generate(Body parse_body, HttpRequest& request,
                                                   HttpReply& reply) {
  // This may run on the pool's thread, so all that it points to outlives that.
  const auto parse = [parse_body, options = parse_, refusals = options_.refusals,
                      service = &service_](
                         const HttpRequest& from) -> absl::StatusOr<OpenAiBody<GenerateRequest>> {
    absl::StatusOr<OpenAiBody<ApiRequest>> parsed = parse_body(from.body, options);
    if (!parsed.ok()) {
      if (refusals != nullptr) refusals->OnRefused(parsed.status());
      return parsed.status();
    }
    for (ApiRequest& prompt : parsed->prompts) {
      prompt.tenant = from.tenant;
      prompt.max_priority = from.max_priority;
      prompt.background = from.background;
      prompt.is_line = from.is_line;
      prompt.waited_ns = WaitedNs(from);
      prompt.trace = from.trace;
      prompt.label = from.request_id;
      if (from.client_named && prompt.client_request_id.empty()) {
        prompt.client_request_id = from.request_id;
      }
    }
    return Validate(*std::move(parsed), *service);
  };
  return Parse<OpenAiBody<GenerateRequest>>(std::move(request), reply, parse, &ApiHandler::Start);
}

void ApiHandler::Send(PoolExchange& exchange, const std::string& tenant, std::size_t bytes,
                      std::function<std::string()> write) {
  if (bytes <= kInlineBytes) return exchange.reply().Send(200, kJson, write(), {});
  MemoryCharge charge(&answers_);
  if (!charge.Grow(bytes)) return SendError(NoMemory(), exchange.reply());
  exchange.Hold(std::move(charge));
  auto work = [write = std::move(write), self = exchange.self()]() -> std::function<void()> {
    if (self.expired()) return [] {};
    auto body = std::make_shared<absl::StatusOr<std::string>>(
        OrNoMemory([&]() -> absl::StatusOr<std::string> { return write(); }));
    return OnIoLoop(self, [body](PoolExchange& waiter) {
      if (!body->ok()) return SendError(body->status(), waiter.reply());
      waiter.reply().Send(200, kJson, **std::move(body), {});
    });
  };
  const absl::Status status =
      service_.RunOnPool(tenant, bytes, io_loop_, std::move(work), exchange.abandoned());
  if (!status.ok()) Refuse(status, exchange.reply());
}

std::unique_ptr<HttpExchange> ApiHandler::Tokenize(HttpRequest& request, HttpReply& reply) {
  const auto parse = [options = parse_, refusals = options_.refusals](const HttpRequest& from) {
    absl::StatusOr<TokenizeRequest> parsed = ParseTokenize(from.body, options);
    if (parsed.ok()) parsed->tenant = from.tenant;
    if (!parsed.ok() && refusals != nullptr) refusals->OnRefused(parsed.status());
    return parsed;
  };
  return Parse<TokenizeRequest>(std::move(request), reply, parse, &ApiHandler::RunTokenize);
}

std::unique_ptr<HttpExchange> ApiHandler::RunTokenize(TokenizeRequest tokenize, HttpReply& reply) {
  auto exchange = std::make_unique<PoolExchange>(reply);
  tokenize.abandoned = exchange->abandoned();
  const std::string tenant = tokenize.tenant;
  auto done = [this, tenant, self = exchange->self()](absl::StatusOr<std::vector<TokenId>> tokens) {
    OnIoLoop(self, [&](PoolExchange& waiter) {
      if (!tokens.ok()) return SendError(tokens.status(), waiter.reply());
      const std::size_t bytes = tokens->size() * kTokenBytes;
      Send(waiter, tenant, bytes, [tokens = *std::move(tokens)] {
        std::string body = R"({"tokens":)";
        AppendJsonIntArray(tokens, body);
        return body += Cat(R"(,"count":)", tokens.size(), "}");
      });
    })();
  };
  service_.Tokenize(std::move(tokenize), io_loop_, std::move(done));
  return exchange;
}

std::unique_ptr<HttpExchange> ApiHandler::Detokenize(HttpRequest& request, HttpReply& reply) {
  const auto parse = [options = parse_, refusals = options_.refusals](const HttpRequest& from) {
    absl::StatusOr<DetokenizeRequest> parsed = ParseDetokenize(from.body, options);
    if (parsed.ok()) parsed->tenant = from.tenant;
    if (!parsed.ok() && refusals != nullptr) refusals->OnRefused(parsed.status());
    return parsed;
  };
  return Parse<DetokenizeRequest>(std::move(request), reply, parse, &ApiHandler::RunDetokenize);
}

std::unique_ptr<HttpExchange> ApiHandler::RunDetokenize(DetokenizeRequest detokenize,
                                                        HttpReply& reply) {
  auto exchange = std::make_unique<PoolExchange>(reply);
  detokenize.abandoned = exchange->abandoned();
  const std::string tenant = detokenize.tenant;
  auto done = [this, tenant, self = exchange->self()](absl::StatusOr<std::string> text) {
    OnIoLoop(self, [&](PoolExchange& waiter) {
      if (!text.ok()) return SendError(text.status(), waiter.reply());
      const std::size_t bytes = text->size();
      Send(waiter, tenant, bytes, [text = *std::move(text)] {
        std::string body = R"({"prompt":)";
        AppendJsonString(text, body);
        return body += '}';
      });
    })();
  };
  service_.Detokenize(std::move(detokenize), io_loop_, std::move(done));
  return exchange;
}

std::unique_ptr<HttpExchange> ApiHandler::ListModels(HttpRequest&, HttpReply& reply) {
  std::string body = R"({"object":"list","data":[)";
  bool first = true;
  for (const ModelInfo& model : service_.Models()) {
    if (!std::exchange(first, false)) body.push_back(',');
    AppendModel(model, body);
  }
  body += "]}";
  reply.Send(200, kJson, std::move(body), {});
  return nullptr;
}

std::unique_ptr<HttpExchange> ApiHandler::GetModel(HttpRequest& request, HttpReply& reply) {
  const std::string name =
      DecodePercent(std::string_view(request.path).substr(kModel.size() - kId.size()));
  const std::vector<ModelInfo> models = service_.Models();
  std::vector<std::string> served;
  for (const ModelInfo& model : models) served.push_back(model.limits.id);
  const std::string meant(ModelMeant(name, {served.begin(), served.end()}));
  for (const ModelInfo& model : models) {
    if (meant.empty() || model.limits.id != meant) continue;
    std::string body;
    AppendModel(model, body);
    reply.Send(200, kJson, std::move(body), {});
    return nullptr;
  }
  SendError(NoSuchModel(name, std::move(served)), reply);
  return nullptr;
}

std::unique_ptr<HttpExchange> ApiHandler::Abort(HttpRequest& request, HttpReply& reply) {
  const std::string id =
      DecodePercent(std::string_view(request.path).substr(kAbort.size() - kId.size()));
  // Answers have such an id behind a prefix (OpenAiAnswer).
  absl::string_view bare = id;
  if (!absl::ConsumePrefix(&bare, "chatcmpl-")) absl::ConsumePrefix(&bare, "cmpl-");
  reply.Send(
      200, kJson,
      service_.Abort({bare.data(), bare.size()}) ? R"({"found":true})" : R"({"found":false})", {});
  return nullptr;
}

std::unique_ptr<HttpExchange> ApiHandler::Health(HttpRequest&, HttpReply& reply) {
  reply.Send(200, kJson, R"({"status":"ok"})", {});
  return nullptr;
}

std::unique_ptr<HttpExchange> ApiHandler::Ready(HttpRequest&, HttpReply& reply) {
  const bool ready = service_.Ready();
  reply.Send(ready ? 200 : 503, kJson,
             ready ? R"({"status":"ready"})" : R"({"status":"not ready"})", {});
  return nullptr;
}

std::unique_ptr<HttpExchange> ApiHandler::Metrics(HttpRequest&, HttpReply& reply) {
  if (options_.metrics) {
    reply.Send(200, "text/plain; version=0.0.4; charset=utf-8", options_.metrics(), {});
  } else {
    SendError(absl::NotFoundError("this server exports no metrics"), reply);
  }
  return nullptr;
}

std::unique_ptr<HttpExchange> ApiHandler::OpenApi(HttpRequest&, HttpReply& reply) {
  reply.Send(200, kJson, OpenApiText(), {});
  return nullptr;
}

std::unique_ptr<HttpExchange> ApiHandler::Root(HttpRequest&, HttpReply& reply) {
  std::string body = "flotilla\n\n";
  for (const Route& route : kRoutes) {
    if (Has(route)) body += Cat(route.method, " ", route.path, "\n");
  }
  reply.Send(200, "text/plain; charset=utf-8", std::move(body), {});
  return nullptr;
}

}  // namespace

std::unique_ptr<HttpHandler> MakeApiHandler(ApiOptions options, InferenceService* service,
                                            IoLoop* io_loop) {
  return std::make_unique<ApiHandler>(std::move(options), service, io_loop);
}

}  // namespace flotilla::router
