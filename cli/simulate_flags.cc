#include "cli/simulate_flags.h"

#include <CLI/CLI.hpp>
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cli/machine_file.h"
#include "simulator/variants.h"
#include "simulator/workload.h"

namespace flotilla::cli {
namespace {

constexpr char kSimulateExamples[] = R"(
Examples:
  One run, with plots, a report and the times of each request in DIR:
    flotilla simulate --machine h200 --preset long --rate 20 --requests 10000 --out DIR
  Latency at growing load, up to overload:
    flotilla simulate --preset long --sweep-rate 5,10,20,30,40 --out DIR
  The effect of an option:
    flotilla simulate --rate 30 --preset long --compare max_chunk_tokens=256,512,2048
  The gain of paging over reserving memory:
    flotilla simulate --preset long --rate 60 --memory-baselines
  A recorded trace (CSV with a header, or JSON lines: arrival_s, prompt_tokens,
  output_tokens; also tenant, priority, deadline_s, prefix_group, prefix_tokens, n, beams), or a trace of
  Mooncake, BurstGPT or Azure:
    flotilla simulate --trace requests.csv
  Measure the steps of a model on this computer, then simulate this computer:
    flotilla simulate --measure model.gguf --out DIR
    flotilla simulate --machine DIR/machine.json --arrivals closed --concurrency 32

Tables go to standard output, and progress goes to standard error. The same flags give the same
numbers. docs/simulate.md explains the cost models and their limits.)";

CLI::Validator InRange(double low, double high) { return CLI::Range(low, high).description(""); }

std::string Names(const std::vector<std::string>& names) { return absl::StrJoin(names, ", "); }

void AddMachineFlags(CLI::App& app, SimulateFlags* f) {
  const char* group = "Machine";
  app.add_option("--machine", f->machine,
                 absl::StrCat("The machine that is modelled: ", MachineNames(),
                              ", or the path of a .json file. [default h200]"))
      ->type_name("NAME|PATH")
      ->group(group);
  app.add_flag("--list-machines", f->list_machines, "The built-in machines are printed as JSON.")
      ->group(group);
  app.add_option("--kv-tokens", f->kv_tokens,
                 "The number of token positions in the KV pool. 0 means the number of the machine.")
      ->check(InRange(0, 1 << 30))
      ->type_name("tokens")
      ->group(group);
  app.add_option(
         "--kv-windows", f->kv_windows,
         "The window in tokens of each KV group of the model. 0 is a group that keeps every "
         "position. flotilla inspect prints the groups of a model.")
      ->delimiter(',')
      ->check(InRange(0, 1 << 24))
      ->type_name("W,W")
      ->group(group);
  app.add_option("--host-tokens", f->host_tokens,
                 "The number of token positions in host memory, for preempted requests and evicted "
                 "prefixes. [default 0]")
      ->check(InRange(0, 1 << 30))
      ->type_name("tokens")
      ->group(group);
  app.add_option(
         "--round-trip", f->round_trip_us,
         "The time that messages take from the scheduler to the worker and back. [default 0]")
      ->check(InRange(0, 1e9))
      ->type_name("us")
      ->group(group);
}

void AddLengthFlags(CLI::App& app, SimulateFlags* f) {
  const char* group = "Workload";
  const auto length = [&](const char* name, double& value, const char* help, double high) {
    app.add_option(name, value, help)->check(InRange(0, high))->group(group);
  };
  length("--prompt-mean", f->prompt_mean,
         "The mean prompt length, if it is not that of the preset.", 1 << 20);
  length("--prompt-sigma", f->prompt_sigma,
         "The standard deviation of the logarithm of prompt lengths.", 4);
  length("--output-mean", f->output_mean,
         "The mean output length, if it is not that of the preset.", 1 << 20);
  length("--output-sigma", f->output_sigma,
         "The standard deviation of the logarithm of output lengths.", 4);
  length("--deadline", f->deadline_s,
         "The deadline of a request, in seconds after its arrival. 0 means none.", 1e6);
  length("--last-deadline", f->last_deadline_s,
         "Deadlines are spread evenly from --deadline to this one. 0 means that each request has "
         "--deadline.",
         1e6);
  app.add_option("--max-tokens", f->max_tokens,
                 "The max_tokens of each request. An answer may be shorter. [default 1024]")
      ->check(InRange(1, 1 << 24))
      ->group(group);
  app.add_flag("--known-lengths", f->known_lengths,
               "The max_tokens of each request is the length of its answer, so the scheduler knows "
               "it. --max-tokens then has no effect.")
      ->group(group);
}

void AddWorkloadFlags(CLI::App& app, SimulateFlags* f) {
  const char* group = "Workload";
  app.add_option("--trace", f->trace,
                 "Recorded requests that are simulated in place of a synthetic workload.")
      ->type_name("PATH")
      ->group(group);
  app.add_option("--preset", f->preset,
                 absl::StrCat("The distribution of lengths: ", Names(simulator::PresetNames()),
                              ". [default short]"))
      ->type_name("NAME")
      ->group(group);
  app.add_option(
         "--arrivals", f->arrivals,
         "How requests arrive. With poisson they are a Poisson process. With gamma the gaps are "
         "gamma-distributed. With closed a new request arrives when one ends. [default poisson]")
      ->type_name("poisson|gamma|closed")
      ->check(CLI::IsMember({"poisson", "gamma", "closed"}).description(""))
      ->group(group);
  app.add_option("--rate", f->rate, "The number of arrivals per second. [default 10]")
      ->check(InRange(1e-6, 1e6))
      ->group(group);
  app.add_option(
         "--burstiness", f->burstiness,
         "The shape of gamma gaps. 1 gives a Poisson process, and a smaller shape gives burstier "
         "arrivals. [default 1]")
      ->check(InRange(0.01, 100))
      ->group(group);
  app.add_option("--concurrency", f->concurrency,
                 "The number of users under --arrivals closed. Each has one request at a time. "
                 "[default 16]")
      ->check(InRange(1, 1 << 20))
      ->group(group);
  app.add_option("--think", f->think_s,
                 "The mean time that such a user waits before the next request, in seconds. "
                 "[default 0]")
      ->check(InRange(0, 1e6))
      ->group(group);
  const auto count = [&](const char* name, std::int64_t& value, double low, double high,
                         const char* help) {
    app.add_option(name, value, help)->check(InRange(low, high))->group(group);
  };
  count("--turns", f->turns, 1, 1000,
        "The number of requests in a chat of such a user. The prompt of each begins with the "
        "prompts and answers before it. 1 means that each request stands alone. [default 1]");
  count("--requests", f->requests, 1, 10'000'000, "The number of requests. [default 1000]");
  count("--seed", f->seed, 0, 9e15, "The seed of arrivals and lengths. [default 1]");
  count("--tenants", f->tenants, 1, 10'000,
        "The number of tenants. Tenant i, counted from 0, sends 1/(i+1) of the requests of tenant "
        "0.");
  count("--priorities", f->priorities, 1, 100,
        "The number of priorities. Each request gets one of them, with equal chances. [default 1]");
  count("--prefix-groups", f->prefix_groups, 0, 1 << 30,
        "The number of groups of prompts that begin alike. 0 means that none do.");
  count("--prefix-tokens", f->prefix_tokens, 0, 1 << 20,
        "The number of tokens that such prompts have in common.");
  AddLengthFlags(app, f);
}

void AddComparisonFlags(CLI::App& app, SimulateFlags* f) {
  const char* group = "Scheduler and comparison";
  app.add_option(
         "--set", f->set,
         absl::StrCat("An option of the scheduler: ", Names(simulator::CoreOptionNames()), "."))
      ->type_name("OPTION=VALUE")
      ->group(group);
  app.add_option(
         "--compare", f->compare,
         "One run is made for each value of the option, or of host_tokens. Several options give "
         "all combinations.")
      ->type_name("OPTION=V,V")
      ->group(group);
  app.add_option("--policies", f->policies,
                 absl::StrCat("The policies that are compared, out of ",
                              absl::StrJoin(scheduler::PolicyNames(), ", "),
                              ". NAME+fair_share is a policy with fair share."))
      ->delimiter(',')
      ->type_name("NAME,NAME")
      ->group(group);
  app.add_option("--sweep-rate", f->sweep_rate,
                 "One run is made for each arrival rate. The plots show TTFT, throughput and "
                 "goodput over the load; TTFT also by length of prompt, priority and tenant.")
      ->delimiter(',')
      ->check(InRange(1e-6, 1e6))
      ->type_name("R,R")
      ->group(group);
  app.add_option("--sweep-concurrency", f->sweep_concurrency,
                 "One run is made for each number of users under --arrivals closed.")
      ->delimiter(',')
      ->check(InRange(1, 1 << 20))
      ->type_name("N,N")
      ->group(group);
  app.add_flag(
         "--memory-baselines", f->memory_baselines,
         "Paging is compared with reserving memory for a request when it starts: for the longest "
         "sequence, for the next power of two, or for the exact length.")
      ->group(group);
  app.add_option(
         "--reserve", f->reserve,
         "The length of the longest sequence in --memory-baselines, in tokens. [default 2048]")
      ->check(InRange(1, 1 << 20))
      ->group(group);
}

void AddOutputFlags(CLI::App& app, SimulateFlags* f) {
  const char* group = "Output";
  app.add_option("--slo-ttft", f->slo_ttft_ms,
                 "A request counts for goodput if its time to first token is at most this many "
                 "milliseconds. [default 1000]")
      ->check(InRange(0, 1e9))
      ->type_name("ms")
      ->group(group);
  app.add_option("--slo-itl", f->slo_itl_ms,
                 "A request counts for goodput if the mean gap between its tokens is at most this "
                 "many milliseconds. [default 100]")
      ->check(InRange(0, 1e9))
      ->type_name("ms")
      ->group(group);
  app.add_flag("--json", f->json, "The result is printed as JSON in place of a table.")
      ->group(group);
  app.add_option(
         "--out", f->out,
         "The folder where report.json, report.csv and plots are written, with requests.csv if "
         "there is only one run. --measure and --fit write their files there.")
      ->type_name("DIR")
      ->group(group);
}

void AddMeasureFlags(CLI::App& app, SimulateFlags* f) {
  const char* group = "Measuring";
  app.add_option(
         "--measure", f->measure,
         "The steps of this GGUF model are timed on this computer, and a machine is fitted to the "
         "times. The times and the machine are written to --out, as steps.csv and machine.json.")
      ->type_name("PATH")
      ->group(group);
  app.add_option("--measure-seconds", f->measure_seconds,
                 "How long each of the nine measured loads runs, in seconds. [default 6]")
      ->check(InRange(0.05, 600))
      ->group(group);
  app.add_option("--threads", f->threads,
                 "The number of compute threads of --measure. 0 means what the CPU quota allows.")
      ->check(InRange(0, 1024))
      ->group(group);
  app.add_option(
         "--fit", f->fit,
         "A machine with a linear cost model is fitted to this steps.csv. It is printed, or "
         "written to --out.")
      ->type_name("PATH")
      ->group(group);
}

}  // namespace

void AddSimulateFlags(CLI::App& app, SimulateFlags* flags) {
  AddMachineFlags(app, flags);
  AddWorkloadFlags(app, flags);
  AddComparisonFlags(app, flags);
  AddOutputFlags(app, flags);
  AddMeasureFlags(app, flags);
  app.get_formatter()->column_width(34);
  app.footer(kSimulateExamples);
}

}  // namespace flotilla::cli
