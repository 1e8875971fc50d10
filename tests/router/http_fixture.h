// A server on a free port with the real tokenizer and template and a fake
// engine, for tests of the HTTP frontend.
#pragma once

#include <chrono>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "model/chat_template.h"
#include "model/checkpoint.h"
#include "model/stop_tokens.h"
#include "model/text/tokenizer.h"
#include "router/http/server.h"
#include "router/service.h"
#include "tests/router/http_client.h"
#include "tests/support/fake_engine.h"
#include "tests/support/test_model.h"

namespace flotilla::router {

using nlohmann::json;

// The texts that all tests share. They are read once and never changed.
struct Text {
  Text() {
    auto file = model::OpenCheckpoint(testing::ModelPath());
    if (!file.ok()) {
      ADD_FAILURE() << "the model file is missing: " << file.status();
      std::exit(1);
    }
    const TokenizerBundle bundle = *(*file)->ReadTokenizer();
    eos = bundle.eos;
    stop_tokens = model::StopTokens(bundle);
    tokenizer = std::make_unique<model::Tokenizer>(*model::Tokenizer::Create(bundle));
    chat_template =
        std::make_unique<model::ChatTemplate>(*model::ChatTemplate::Compile(*bundle.chat_template));
  }
  static const Text& Get() {
    static const Text* const text = new Text;
    return *text;
  }
  std::vector<TokenId> Encode(const std::string& s) const { return *tokenizer->Encode(s); }

  TokenId eos = -1;
  std::vector<TokenId> stop_tokens;
  std::unique_ptr<model::Tokenizer> tokenizer;
  std::unique_ptr<model::ChatTemplate> chat_template;
};

// Waits until another thread makes the condition true. False: it did not in time.
[[nodiscard]] inline bool Await(const std::function<bool()>& condition) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::yield();
  }
  return true;
}

struct Fixture {
  bool manual = false;
  std::size_t tokenizer_queue = 64;
  HttpServerOptions http = {};
  bool model_sampling = false;
  std::uint32_t max_sequences = 8;
};

class HttpTest : public ::testing::Test {
 protected:
  void Serve(Fixture setup = {}) {
    testing::FakeEngineOptions engine;
    engine.description.vocab_size = text_.tokenizer->vocab_size();
    engine.description.max_context = 2048;
    engine.description.max_sequences = setup.max_sequences;
    engine.manual = setup.manual;
    engine_ = std::make_unique<testing::FakeEngine>(engine);
    ServiceOptions options;
    options.tokenizer_queue = setup.tokenizer_queue;
    options.model_sampling = setup.model_sampling;
    service_ = InferenceService::Create(options, &clock_);
    service_->AddModel({.id = "m",
                        .end_tokens = text_.stop_tokens,
                        .engine = engine_.get(),
                        .tokenizer = text_.tokenizer.get(),
                        .chat_template = text_.chat_template.get(),
                        .sampling = {{"temperature", 0.5}, {"top_k", 20}}});
    setup.http.port = 0;
    server_ = HttpServer::Create(setup.http, service_.get());
    port_ = *server_->Start();
  }
  ~HttpTest() override {
    if (server_) server_->Stop(absl::ZeroDuration());
  }

  void Answer(const std::string& text, bool end = true) {
    std::vector<TokenId> tokens = text_.Encode(text);
    if (end) tokens.push_back(text_.eos);
    engine_->Script({.tokens = tokens});
  }
  HttpResponse Post(const std::string& path, const std::string& body,
                    const std::string& headers = "") {
    return HttpClient(port_).Call("POST", path, body, headers);
  }
  HttpResponse Chat(const std::string& more) {
    return Post("/v1/chat/completions",
                R"({"model":"m","messages":[{"role":"user","content":"hi"}])" + more + "}");
  }
  HttpResponse Complete(const std::string& more) {
    return Post("/v1/completions", R"({"model":"m","prompt":"hi")" + more + "}");
  }

  const Text& text_ = Text::Get();
  SteadyClock clock_;
  std::unique_ptr<testing::FakeEngine> engine_;
  std::unique_ptr<InferenceService> service_;
  std::unique_ptr<HttpServer> server_;
  std::uint16_t port_ = 0;
};

}  // namespace flotilla::router
