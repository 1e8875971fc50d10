#include "cli/loadtest_flags.h"

#include <CLI/CLI.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cli/machine_file.h"
#include "common/traces/trace_formats.h"
#include "loadtest/core/load_plan.h"

namespace flotilla::cli {
namespace {

constexpr char kLoadtestExamples[] = R"(
Examples:
  16 users, each with one request at a time:
    flotilla loadtest http://127.0.0.1:8080 --model m --concurrency 16 --requests 200
  5 requests a second for a minute, with a report:
    flotilla loadtest http://127.0.0.1:8080 --model m --rate 5 --duration 60 \
      --prompt lognormal:200:1 --output 50-150 --report run.html --json run.json
  The highest rate that the server sustains, with the simulator's beside it:
    flotilla loadtest http://127.0.0.1:8080 --model m --sweep --rate 1 --duration 30 \
      --predict this-cpu --report sweep.html
  A recorded trace, four times as fast:
    flotilla loadtest http://127.0.0.1:8080 --model m --trace mooncake.jsonl --speed 4
  Conversations of 4 turns whose prompts have a half in common:
    flotilla loadtest http://127.0.0.1:8080 --model m --turns 4 --think 2 --prefix-share 0.5
  Two runs side by side:
    flotilla loadtest --compare before.json,after.json

An API key is read from --api-key-file or else from the environment variable OPENAI_API_KEY.
The table goes to standard output, and progress goes to standard error. The same flags send the
same requests. On SIGINT no more requests are sent; a second one cancels those under way.
docs/loadtest.md explains the figures.)";

CLI::Validator Between(double low, double high) { return CLI::Range(low, high).description(""); }

void AddServerFlags(CLI::App& app, LoadtestFlags* f) {
  const char* group = "Server";
  app.add_option("url", f->url, "The server, such as http://127.0.0.1:8080.")->type_name("");
  app.add_option("--model", f->model, "The model that requests name.")
      ->type_name("NAME")
      ->group(group);
  app.add_flag("--completions", f->completions,
               "Requests go to /v1/completions, not to /v1/chat/completions.")
      ->group(group);
  app.add_flag("--grpc", f->grpc,
               "The server is a flotilla whose gRPC interface listens at this address.")
      ->group(group);
  app.add_option("--api-key-file", f->api_key_file,
                 "A file with the API key and nothing else. Others must not be able to write to "
                 "it.")
      ->type_name("PATH")
      ->group(group);
  app.add_option("--ca-file", f->ca_file,
                 "Certificates that https trusts besides those of the system, as PEM.")
      ->type_name("PATH")
      ->group(group);
  app.add_flag("--insecure-tls", f->insecure_tls,
               "https trusts every certificate. Only for servers on networks of your own.")
      ->group(group);
  app.add_flag("--keep-alive", f->keep_alive,
               "A connection serves one request after the other, as in most clients. Without this "
               "flag each request has a connection of its own, and TTFT has the cost of it.")
      ->group(group);
  app.add_option("--temperature", f->temperature, "The temperature of requests. [default 0]")
      ->check(Between(0, 2))
      ->group(group);
  app.add_flag("--stop-at-eos", f->stop_at_eos,
               "Answers end where the model ends them. Without this flag requests have "
               "ignore_eos, so that answers have the wanted length; OpenAI's own servers refuse "
               "that field.")
      ->group(group);
  app.add_option("--extra-body", f->extra_body, "Fields that are added to each request, as JSON.")
      ->type_name("JSON")
      ->group(group);
  app.add_option("--timeout", f->timeout_s,
                 "The longest that a request may take, in seconds. [default 600]")
      ->check(Between(0.001, 86400))
      ->group(group);
}

void AddLoadFlags(CLI::App& app, LoadtestFlags* f) {
  const char* group = "Load";
  app.add_option("--arrivals", f->arrivals,
                 "How requests arrive. With closed, each of --concurrency users sends the next "
                 "request when the last one has ended. With constant, poisson, gamma and bursts, "
                 "--rate requests a second are sent whatever the server does: with equal gaps, as "
                 "a Poisson process, with gamma-distributed gaps, or --burst at once. [default "
                 "closed, or poisson if --rate is given]")
      ->type_name(absl::StrJoin(loadtest::ArrivalNames(), "|"))
      ->check(CLI::IsMember(loadtest::ArrivalNames()).description(""))
      ->group(group);
  app.add_option("--rate", f->rate, "The number of arrivals per second. --sweep begins with it.")
      ->check(Between(1e-6, 1e6))
      ->group(group);
  app.add_option("--concurrency", f->concurrency, "The number of users. [default 16]")
      ->check(Between(1, 1 << 16))
      ->group(group);
  app.add_option(
         "--burstiness", f->burstiness,
         "The shape of gamma gaps. 1 gives a Poisson process, and a smaller shape gives burstier "
         "arrivals. [default 1]")
      ->check(Between(0.01, 100))
      ->group(group);
  app.add_option("--burst", f->burst, "The requests of a burst. [default 10]")
      ->check(Between(1, 1 << 20))
      ->group(group);
  app.add_option("--requests", f->requests,
                 "The number of requests. [default 100, or as many as --duration allows]")
      ->check(Between(1, 10'000'000))
      ->group(group);
  app.add_option("--duration", f->duration_s,
                 "No request is sent after so many seconds. Those under way are waited for.")
      ->check(Between(0.01, 1e6))
      ->group(group);
  app.add_option("--max-in-flight", f->max_in_flight,
                 "The most requests under way with --rate. Further ones wait here, and their "
                 "latencies count from when they were due. [default 10000]")
      ->check(Between(1, 1 << 20))
      ->group(group);
  app.add_option("--seed", f->seed, "The seed of arrivals, lengths and words. [default 1]")
      ->check(Between(0, 9e15))
      ->group(group);
}

void AddRequestFlags(CLI::App& app, LoadtestFlags* f) {
  const char* group = "Requests";
  app.add_option("--prompt", f->prompt,
                 "The length of prompts in words, which are about as many tokens: a number, "
                 "LOW-HIGH, or lognormal:MEAN:SIGMA. [default 128]")
      ->type_name("LENGTHS")
      ->group(group);
  app.add_option("--output", f->output,
                 "The length of answers in tokens, in the same way. [default 64]")
      ->type_name("LENGTHS")
      ->group(group);
  app.add_option("--max-prompt", f->max_prompt, "Longer prompts are cut to so many words.")
      ->check(Between(1, 1 << 20))
      ->group(group);
  app.add_option("--max-output", f->max_output, "Longer answers are cut to so many tokens.")
      ->check(Between(1, 1 << 20))
      ->group(group);
  app.add_option("--prefix-share", f->prefix_share,
                 "The share of a prompt that other prompts begin with, too, so that a prefix "
                 "cache has work. [default 0]")
      ->check(Between(0, 1))
      ->group(group);
  app.add_option("--prefix-groups", f->prefix_groups,
                 "The number of such common beginnings. [default 1]")
      ->check(Between(1, 1 << 30))
      ->group(group);
  app.add_option("--turns", f->turns,
                 "The number of requests in a conversation. Each has all that was said before, "
                 "with the server's answers. [default 1]")
      ->check(Between(1, 1000))
      ->group(group);
  app.add_option("--think", f->think_s,
                 "The mean time that a user waits before the next request, in seconds. [default 0]")
      ->check(Between(0, 1e6))
      ->group(group);
  app.add_option("--trace", f->trace, "A recorded trace, which is sent in place of made requests.")
      ->type_name("PATH")
      ->group(group);
  app.add_option("--trace-format", f->trace_format,
                 "The format of the trace, if it cannot be seen from its first line.")
      ->type_name(absl::StrJoin(TraceFormatNames(), "|"))
      ->check(CLI::IsMember(TraceFormatNames()).description(""))
      ->group(group);
  app.add_option("--speed", f->speed,
                 "How many times as fast as it was recorded the trace is sent. [default 1]")
      ->check(Between(0.001, 1000))
      ->group(group);
}

void AddGoodputFlags(CLI::App& app, LoadtestFlags* f) {
  const char* group = "Goodput and sweeps";
  const auto bound = [&](const char* name, double& value, const char* help) {
    app.add_option(name, value, help)->check(Between(0, 1e9))->type_name("ms")->group(group);
  };
  bound("--slo-ttft", f->slo_ttft_ms,
        "A request counts for goodput if its time to first token is at most this many "
        "milliseconds. 0 means no bound. [default 1000]");
  bound("--slo-itl", f->slo_itl_ms,
        "A request counts for goodput if the mean gap between its tokens is at most this many "
        "milliseconds. 0 means no bound. [default 100]");
  bound("--slo-e2e", f->slo_e2e_ms,
        "A request counts for goodput if it ends within this many milliseconds. 0 means no bound. "
        "[default 0]");
  app.add_flag("--sweep", f->sweep,
               "One run is made for each of several rates, which double from --rate on and then "
               "close in on the knee: the highest rate that the server sustains.")
      ->group(group);
  app.add_option("--sweep-rate", f->sweep_rate, "One run is made for each of these rates.")
      ->delimiter(',')
      ->check(Between(1e-6, 1e6))
      ->type_name("R,R")
      ->group(group);
  app.add_option("--sweep-share", f->sweep_share,
                 "A rate is sustained if this share of its requests counts for goodput. [default "
                 "0.9]")
      ->check(Between(0.01, 1))
      ->group(group);
  app.add_option("--sweep-runs", f->sweep_runs, "The most runs of --sweep. [default 12]")
      ->check(Between(1, 100))
      ->group(group);
  app.add_option("--predict", f->predict,
                 absl::StrCat("What flotilla simulate predicts for the same requests on this "
                              "machine is shown beside the figures: ",
                              MachineNames(), ", or the path of a .json file."))
      ->type_name("NAME|PATH")
      ->group(group);
}

void AddOutputFlags(CLI::App& app, LoadtestFlags* f) {
  const char* group = "Output";
  app.add_option("--label", f->label, "The name of the run in tables and reports.")
      ->type_name("TEXT")
      ->group(group);
  app.add_option("--json", f->json, "The figures are written to this file.")
      ->type_name("FILE")
      ->group(group);
  app.add_option("--report", f->report,
                 "The figures and charts are written to this file, as one HTML page.")
      ->type_name("FILE.html")
      ->group(group);
  app.add_option("--compare", f->compare,
                 "These files of --json are compared. Nothing is sent. --report and --json write "
                 "the comparison.")
      ->delimiter(',')
      ->type_name("FILE,FILE")
      ->group(group);
}

}  // namespace

void AddLoadtestFlags(CLI::App& app, LoadtestFlags* flags) {
  AddServerFlags(app, flags);
  AddLoadFlags(app, flags);
  AddRequestFlags(app, flags);
  AddGoodputFlags(app, flags);
  AddOutputFlags(app, flags);
  app.get_formatter()->column_width(34);
  app.footer(kLoadtestExamples);
}

}  // namespace flotilla::cli
