// The flotilla program: one subcommand per role or tool.

#include <CLI/CLI.hpp>
#include <iostream>
#include <string>

#include "absl/status/status.h"
#include "cli/flags.h"
#include "cli/inspect.h"
#include "cli/serve.h"
#include "cli/simulate.h"
#include "cli/simulate_flags.h"

namespace {

constexpr char kServeExamples[] = R"(
Examples:
  flotilla serve --model SmolLM2-135M-Instruct.Q4_1.gguf
  flotilla serve --model m.gguf --served-model-name chat --http-port 0 --threads 4

Once it prints `ready http=HOST:PORT grpc=HOST:PORT` on standard output:
  curl http://127.0.0.1:8080/v1/chat/completions -H 'Content-Type: application/json' \
    -d '{"messages":[{"role":"user","content":"Hello!"}],"model":"NAME"}'

SIGINT or SIGTERM: no new requests, running ones finish; a second one ends at once.)";

int Report(const absl::Status& status) {
  if (status.ok()) return 0;
  std::cerr << "flotilla: " << status.message() << "\n";
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"flotilla serves open large language models", "flotilla"};
  app.set_version_flag("--version", FLOTILLA_VERSION);
  app.require_subcommand(1);

  flotilla::ServeFlags serve_flags;
  CLI::App* serve = app.add_subcommand("serve", "Serve a model, all roles in this process");
  flotilla::AddServeFlags(*serve, &serve_flags);
  serve->footer(kServeExamples);

  std::string inspect_path;
  CLI::App* inspect = app.add_subcommand("inspect", "Show what a GGUF file holds");
  inspect->add_option("model", inspect_path, "GGUF file")->required();

  flotilla::SimulateFlags simulate_flags;
  CLI::App* simulate =
      app.add_subcommand("simulate", "Run the scheduler in virtual time on a modelled machine");
  flotilla::AddSimulateFlags(*simulate, &simulate_flags);

  CLI11_PARSE(app, argc, argv);
  if (serve->parsed()) return Report(flotilla::RunServe(serve_flags, FLOTILLA_VERSION));
  if (simulate->parsed()) return Report(flotilla::RunSimulate(simulate_flags));
  return Report(flotilla::RunInspect(inspect_path));
}
