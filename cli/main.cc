// The flotilla program: one subcommand per role or tool.

#include <CLI/CLI.hpp>
#include <algorithm>
#include <iostream>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "cli/exec.h"
#include "cli/flags.h"
#include "cli/inspect.h"
#include "cli/loadtest.h"
#include "cli/loadtest_flags.h"
#include "cli/node.h"
#include "cli/parse_error.h"
#include "cli/quantize.h"
#include "cli/rank.h"
#include "cli/router.h"
#include "cli/run.h"
#include "cli/scheduler.h"
#include "cli/serve.h"
#include "cli/simulate.h"
#include "cli/simulate_flags.h"
#include "cli/top.h"
#include "cli/worker.h"
#include "common/obs/printable.h"
#include "common/rt/allocator.h"
#include "common/rt/descriptors.h"
#include "worker/constraint/compile_child.h"

namespace flotilla::cli {
namespace {

constexpr char kServeExamples[] = R"(
Examples:
  flotilla serve --model SmolLM2-135M-Instruct.Q4_1.gguf
  flotilla serve --model m.gguf --served-model-name chat --http-port 0 --threads 4

The server is ready when it prints `ready http=HOST:PORT grpc=HOST:PORT` on standard output
(and `health=HOST:PORT`, with --health-port). Then a client can call it:
  curl http://127.0.0.1:8080/v1/chat/completions -H 'Content-Type: application/json' \
    -d '{"model":"SmolLM2-135M-Instruct","temperature":0,
         "messages":[{"role":"user","content":"Hello!"}]}'

On SIGINT or SIGTERM the server takes no new requests, and running requests finish. A second
signal ends the server at once.)";

constexpr char kFleetExamples[] = R"(
Examples, a fleet on one machine:
  flotilla worker --model m.gguf --listen-port 7001 &
  flotilla scheduler --worker 127.0.0.1:7001 --listen-port 7002 &
  flotilla router --scheduler 127.0.0.1:7002

The same fleet with one process less. This scheduler runs the worker group itself, so plans and
results need no gRPC stream:
  flotilla scheduler --model m.gguf --listen-port 7002 &
  flotilla router --scheduler 127.0.0.1:7002

The processes may start in any order. Each prints a line that begins with `ready` when it can
work. On SIGINT or SIGTERM a router or scheduler lets running requests finish. A worker does not
wait: its scheduler has the requests computed again. A second signal ends a process at once.)";

constexpr char kNodeExamples[] = R"(
Example, a worker group of two ranks on 10.1.0.1 and 10.1.0.2, which have the same files:
  10.1.0.2: flotilla node --host 10.1.0.2 --listen-port 7003 --fleet-secret-file secret
  10.1.0.1: flotilla worker --model m.gguf --tp 2 --fleet-secret-file secret \
              --group-network 10.1.0.0/16 --hosts 10.1.0.1,10.1.0.2 --hosts-port 7003

Members of the fleet can run anything on this host, so keep others away from its port.)";

constexpr char kLinkPrefix[] = "flotilla-";

int Report(const absl::Status& status) {
  if (status.ok()) return 0;
  std::cerr << "flotilla: " << Printable(std::string(status.message())) << "\n";
  return 1;
}

}  // namespace

int Main(int argc, char** argv) {
#ifdef NDEBUG
  // Debian builds Abseil with its checks. Without this call, Abseil enters every lock, also
  // gRPC's, into a graph.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
#endif
  ConfigureAllocator();
  RaiseDescriptorLimit();
  CLI::App app{"flotilla serves open large language models", "flotilla"};
  app.set_version_flag("--version", FLOTILLA_VERSION);
  app.require_subcommand(1);

  RoleFlags serve_flags, router_flags, scheduler_flags, worker_flags, rank_flags, node_flags,
      exec_flags;
  CLI::App* serve = app.add_subcommand("serve", "Serve a model, all roles in this process");
  AddRoleFlags(*serve, Role::kServe, &serve_flags);
  serve->footer(kServeExamples);
  RunFlags run_flags;
  CLI::App* run = app.add_subcommand("run", "Answer a file of requests, without a server");
  AddRunFlags(*run, &run_flags);
  CLI::App* router =
      app.add_subcommand("router", "Serve clients; schedulers and workers run the models");
  AddRoleFlags(*router, Role::kRouter, &router_flags);
  router->footer(kFleetExamples);
  CLI::App* scheduler = app.add_subcommand("scheduler", "Schedule the work of a worker group");
  AddRoleFlags(*scheduler, Role::kScheduler, &scheduler_flags);
  scheduler->footer(kFleetExamples);
  CLI::App* worker = app.add_subcommand("worker", "Run a model for a scheduler");
  AddRoleFlags(*worker, Role::kWorker, &worker_flags);
  worker->footer(kFleetExamples);
  CLI::App* node =
      app.add_subcommand("node", "Start ranks on this host for workers on other hosts");
  AddRoleFlags(*node, Role::kNode, &node_flags);
  node->footer(kNodeExamples);
  // The agent of a worker group starts this command and chooses its flags.
  CLI::App* rank = app.add_subcommand("rank", "Run one rank of a worker group")->group("");
  AddRoleFlags(*rank, Role::kRank, &rank_flags);
  // The mpirun that an agent starts calls this command.
  CLI::App* exec =
      app.add_subcommand("exec", "Run a command on a host through its flotilla node")->group("");
  AddExecFlags(*exec, &exec_flags);

  // A worker starts this command.
  CLI::App* compile =
      app.add_subcommand("compile-constraints", "Compile grammars for a worker")->group("");

  std::string inspect_path, inspect_quantize = "none";
  CLI::App* inspect = app.add_subcommand("inspect", "Show what a model file or folder holds");
  inspect->add_option("model", inspect_path, "The GGUF file, or the Hugging Face folder.")
      ->required();
  inspect
      ->add_option("--quantize", inspect_quantize,
                   "The model is shown as flotilla serve --quantize would load it: none, int8, "
                   "int4, nf4 or fp8.")
      ->type_name("");

  QuantizeFlags quantize_flags;
  CLI::App* quantize = app.add_subcommand("quantize", "Make a quantised model of a float one");
  AddQuantizeFlags(*quantize, &quantize_flags);

  SimulateFlags simulate_flags;
  CLI::App* simulate =
      app.add_subcommand("simulate", "Run the scheduler in virtual time on a modelled machine");
  AddSimulateFlags(*simulate, &simulate_flags);

  LoadtestFlags loadtest_flags;
  CLI::App* loadtest =
      app.add_subcommand("loadtest", "Put load on a server and measure how it answers");
  AddLoadtestFlags(*loadtest, &loadtest_flags);

  TopFlags top_flags;
  CLI::App* top = app.add_subcommand("top", "Watch a fleet by its metrics");
  AddTopFlags(*top, &top_flags);

  // The name flotilla-router means `flotilla router`.
  std::vector<std::string> words(argv, argv + argc);
  const std::string called = words[0].substr(words[0].rfind('/') + 1);
  if (called.starts_with(kLinkPrefix)) {
    words.insert(words.begin() + 1, called.substr(std::string_view(kLinkPrefix).size()));
  }
  std::reverse(words.begin() + 1, words.end());  // the library wants them in reverse
  words.erase(words.begin());
  try {
    app.parse(words);
  } catch (const CLI::Success& error) {  // the user asked for help or the version
    return app.exit(error);
  } catch (const CLI::ParseError& error) {
    std::cerr << ExplainParseError(app, error) << "\n";
    return error.get_exit_code();
  }
  if (serve->parsed()) return Report(RunServe(serve_flags, FLOTILLA_VERSION));
  if (run->parsed()) {
    const absl::StatusOr<int> code = RunBatch(run_flags, FLOTILLA_VERSION);
    return code.ok() ? *code : Report(code.status());
  }
  if (router->parsed()) return Report(RunRouter(router_flags, FLOTILLA_VERSION));
  if (scheduler->parsed()) {
    return Report(RunScheduler(scheduler_flags, FLOTILLA_VERSION));
  }
  if (worker->parsed()) return Report(RunWorker(worker_flags, FLOTILLA_VERSION));
  if (node->parsed()) return Report(RunNode(node_flags, FLOTILLA_VERSION));
  if (rank->parsed()) RunRank(rank_flags);
  if (exec->parsed()) {
    const absl::StatusOr<int> code = RunExec(exec_flags, exec->remaining());
    return code.ok() ? *code : Report(code.status());
  }
  if (compile->parsed()) return Report(worker::RunCompileChild());
  if (quantize->parsed()) return Report(RunQuantize(quantize_flags));
  if (simulate->parsed()) return Report(RunSimulate(simulate_flags));
  if (loadtest->parsed()) return Report(RunLoadtest(loadtest_flags));
  if (top->parsed()) return Report(RunTop(top_flags));
  return Report(RunInspect(inspect_path, inspect_quantize));
}

}  // namespace flotilla::cli

int main(int argc, char** argv) { return flotilla::cli::Main(argc, argv); }
