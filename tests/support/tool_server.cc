// tool_server: the HTTP API over answers that a test writes, for tests with real clients.
//
//   usage: tool_server MODEL_FILE
//
// It serves the model "q", which has the tokenizer of the file and a chat template with tools and
// thoughts. It prints its port. Each line of its input is a JSON string, the answer of the next
// request, in which markers are tokens; it prints a line when it has read one. It ends with the
// input.
#include <cstdio>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "common/rt/clock.h"
#include "model/chat_template.h"
#include "model/checkpoint.h"
#include "model/stop_tokens.h"
#include "model/text/tokenizer.h"
#include "nlohmann/json.hpp"
#include "router/http/server.h"
#include "router/service.h"
#include "tests/support/fake_engine.h"
#include "tests/support/tool_templates.h"

namespace flotilla::testing {
namespace {

int Serve(const char* path) {
  const auto file = model::OpenCheckpoint(path);
  if (!file.ok()) {
    std::fprintf(stderr, "tool_server: %s\n", file.status().ToString().c_str());
    return 1;
  }
  const TokenizerBundle bundle = WithMarkers(*(*file)->ReadTokenizer());
  const auto tokenizer = model::Tokenizer::Create(bundle);
  const auto chat_template = model::ChatTemplate::Compile(kHermesTemplate);
  FakeEngineOptions options;
  options.description.vocab_size = tokenizer->vocab_size();
  FakeEngine engine(options);
  const SteadyClock clock;
  const auto service = router::InferenceService::Create({}, &clock);
  service->AddModel({.id = "q",
                     .end_tokens = model::StopTokens(bundle),
                     .engine = &engine,
                     .tokenizer = &*tokenizer,
                     .chat_template = &*chat_template});
  const auto server = router::HttpServer::Create({.port = 0}, service.get());
  std::cout << *server->Start() << std::endl;
  for (std::string line; std::getline(std::cin, line); std::cout << std::endl) {
    std::vector<TokenId> tokens =
        *tokenizer->Encode(nlohmann::json::parse(line).get<std::string>(), {.parse_special = true});
    tokens.push_back(bundle.eos);
    engine.Script({.tokens = std::move(tokens)});
  }
  server->Stop(absl::ZeroDuration());
  return 0;
}

}  // namespace
}  // namespace flotilla::testing

int main(int argc, char** argv) {
  if (argc == 2) return flotilla::testing::Serve(argv[1]);
  std::fprintf(stderr, "usage: tool_server MODEL_FILE\n");
  return 2;
}
