"""What the dashboards show, panel by panel; generate.py makes Grafana's JSON of it.

A dashboard is a list of rows of panels. In expressions ROUTER, REPLICA and PROCESS stand for
the label selection by the variables of the dashboard. tests/integration/monitoring_test.py
asks a real Prometheus every expression.
"""

import dataclasses


@dataclasses.dataclass
class Panel:
    """One panel: `queries` are (legend, expression)."""

    title: str
    unit: str  # Grafana's id of the unit
    description: str  # what it shows and what to look for
    queries: list
    kind: str = "timeseries"  # stat, or heatmap with one query by le
    width: int = 8
    stacked: bool = False
    maximum: float | None = None
    # (value, colour): from this value on the panel has this colour.
    thresholds: tuple = ()
    mappings: dict = dataclasses.field(default_factory=dict)  # {value: text}


def up_down(title, description, expression, good="ready", bad="NOT READY", width=8):
    """A panel that shows a value of 1 or 0 of each process as a word."""
    return Panel(title, "none", description, [("{{role}} {{replica}} {{instance}}", expression)],
                 kind="stat", width=width, thresholds=((0, "red"), (1, "green")),
                 mappings={"1": good, "0": bad})


def quantiles(metric, selection, by=""):
    """p50, p90, p99 of a histogram."""
    legend = "".join(f" {{{{{label}}}}}" for label in by.split(", ") if label)
    labels = "le" + (f", {by}" if by else "")
    return [(f"p{q}{legend}", f"histogram_quantile(0.{q}, sum by ({labels}) "
             f"(rate({metric}_bucket{{{selection}}}[$__rate_interval])))") for q in (50, 90, 99)]


def mean(metric, selection, by):
    return (f"sum by ({by}) (rate({metric}_sum{{{selection}}}[$__rate_interval])) / "
            f"sum by ({by}) (rate({metric}_count{{{selection}}}[$__rate_interval]))")


def rate(metric, selection, by):
    return f"sum by ({by}) (rate({metric}{{{selection}}}[$__rate_interval]))"


def heat(title, unit, description, metric, selection, width=8):
    return Panel(title, unit, description,
                 [("{{le}}", f"sum by (le) (increase({metric}_bucket{{{selection}}}"
                   "[$__rate_interval]))")], kind="heatmap", width=width)


TTFT = "flotilla_router_time_to_first_token_seconds"
ITL = "flotilla_router_inter_token_latency_seconds"
STEP = "flotilla_scheduler_step_duration_seconds"

FIRST_TOKEN = Panel(
    "Time to first token", "s",
    "From arrival to the first token: queue, prefill and one step. p99 above 2.5 s uses up the "
    "objective (99 % within it); if the queue wait rises too, capacity is short, else prompts "
    "are long.",
    quantiles(TTFT, "ROUTER"))
INTER_TOKEN = Panel(
    "Inter-token latency", "s",
    "Between tokens of one answer. It follows the step's duration; a p99 far above p50 means "
    "steps with long prefill chunks (--itl-target-ms) or preemption.", quantiles(ITL, "ROUTER"))
OUTPUT_RATE = Panel(
    "Output tokens", "cps",
    "Tokens generated per second by each replica. Flat while the queue grows: the replica is at its "
    "limit.",
    [("replica {{replica}}",
      rate("flotilla_scheduler_tokens_total", 'REPLICA,kind="generated"', "replica"))],
    stacked=True)
QUEUE = Panel(
    "Waiting and running", "short",
    "Requests in the queue and with KV blocks. Waiting above running for minutes: more comes in "
    "than is computed.",
    [("waiting {{replica}}", "sum by (replica) (flotilla_scheduler_requests_waiting{REPLICA})"),
     ("running {{replica}}", "sum by (replica) (flotilla_scheduler_requests_running{REPLICA})")])
UTILIZATION = Panel(
    "KV pool in use", "percentunit",
    "Blocks of running requests / all blocks. Above 95 % for minutes, requests wait for memory "
    "or are preempted.", [("replica {{replica}}", "flotilla_kv_utilization_ratio{REPLICA}")], maximum=1,
    thresholds=((0, "green"), (0.8, "orange"), (0.95, "red")))
STEP_AGE = Panel(
    "Age of the step", "s",
    "How long the next result has been waited for; 0 when idle. It should stay near the step's "
    "duration: beyond 10 s the replica stands still.",
    [("replica {{replica}}", "flotilla_scheduler_step_age_seconds{REPLICA}")],
    thresholds=((0, "green"), (2, "orange"), (10, "red")))
REFUSED = Panel(
    "Refused", "reqps",
    "queue_full: capacity is short. draining: a process stops. deadline: requests come with too "
    "little time. too_long and invalid are the clients' own mistakes.",
    [("{{reason}}", rate("flotilla_router_rejected_total", "ROUTER", "reason"))], stacked=True)

DASHBOARDS = {
    "overview": ("flotilla: fleet", [
        ("State", [
            up_down("Processes", "Whether Prometheus reaches each process. Red: it, its host or "
                    "the network is gone.",
                    'up{role=~"router|scheduler|worker|node",instance=~"$instance"}', "up", "DOWN",
                    width=12),
            up_down("Routers", "Whether each router serves new requests for a model; not while "
                    "it drains or reaches no replica.", "flotilla_router_ready{ROUTER}", width=6),
            up_down("Replicas", "Whether each scheduler has a worker group that takes plans.",
                    "flotilla_scheduler_group_ready{REPLICA}", width=6),
        ]),
        ("Traffic", [
            Panel("Requests", "reqps", "Valid requests per second. A sudden drop with clients "
                  "unchanged: look at refusals and at the processes above.",
                  [("{{instance}}", rate("flotilla_router_requests_total", "ROUTER", "instance"))],
                  stacked=True),
            Panel("In flight", "short", "Valid requests that are not over, by router. Uneven for "
                  "long: clients keep old connections.",
                  [("{{instance}}", "flotilla_router_requests_in_flight{ROUTER}")], stacked=True),
            REFUSED, FIRST_TOKEN, INTER_TOKEN, OUTPUT_RATE]),
        ("Replicas", [QUEUE, UTILIZATION, STEP_AGE]),
        ("Processes", [
            Panel("CPU", "short", "CPU cores in use. A rank at its --threads is busy; a router "
                  "near 1 core is worth a second one.",
                  [("{{role}} {{instance}}",
                    "rate(process_cpu_seconds_total{PROCESS}[$__rate_interval])"),
                   ("{{instance}} rank {{rank}}",
                    "rate(flotilla_worker_rank_cpu_seconds_total{PROCESS}[$__rate_interval])")]),
            Panel("Resident memory", "bytes", "A rank's is weights and KV pool, and constant. "
                  "One that grows for hours is a leak: report it.",
                  [("{{role}} {{instance}}", "process_resident_memory_bytes{PROCESS}"),
                   ("{{instance}} rank {{rank}}",
                    "flotilla_worker_rank_resident_memory_bytes{PROCESS}")]),
            Panel("Uptime", "s", "Since the start of each process. What keeps falling to 0 is "
                  "restarted again and again.",
                  [("{{role}} {{instance}}", "time() - process_start_time_seconds{PROCESS}")]),
            Panel("Open files", "percentunit", "File descriptors in use / limit. At 100 % no new "
                  "connection is taken: raise the limit (ulimit -n).",
                  [("{{role}} {{instance}}",
                    "process_open_fds{PROCESS} / process_max_fds{PROCESS}")], maximum=1),
            Panel("Threads", "short", "Threads of each process; constant after the start.",
                  [("{{role}} {{instance}}", "process_threads{PROCESS}")]),
            Panel("Log lines dropped", "cps", "Lines that nobody read in time. Above 0, what "
                  "collects the log stands still or is too slow.",
                  [("{{role}} {{instance}}",
                    "rate(flotilla_log_dropped_lines_total{PROCESS}[$__rate_interval])")]),
            Panel("Versions", "none", "Processes by version. More than one is a roll-out; "
                  "requests cannot move between versions.",
                  [("{{version}}", "count by (version) (max by (instance, version) "
                    "(flotilla_build_info{PROCESS}))")], kind="stat"),
        ]),
    ]),
    "latency": ("flotilla: latency", [
        ("First token", [
            FIRST_TOKEN,
            heat("First tokens by time", "s", "Where first tokens fall. Two bands: cached and "
                 "uncached prompts, or short and long ones.", TTFT, "ROUTER"),
            Panel("Slower than 2.5 s", "percentunit", "Share of requests whose first token is "
                  "late, over 5 minutes and 1 hour. 1 % is the objective, 14.4 % alerts.",
                  [(window, f'model:flotilla_router_slow_first_token:ratio_rate{window}'
                    '{model=~"$model"}') for window in ("5m", "30m", "1h", "6h")]),
            Panel("Queue wait", "s", "Mean time in the queue by Little's law: waiting / requests "
                  "finished per second, over 2 minutes. Above 5 s alerts.",
                  [("replica {{replica}}", "replica:flotilla_scheduler_queue_wait_seconds:avg2m"
                    '{model=~"$model",replica=~"$replica"}')]),
            Panel("Mean by router", "s", "Mean time to first token at each router. One that "
                  "differs is overloaded, or far from its scheduler.",
                  [("{{instance}}", mean(TTFT, "ROUTER", "instance"))]),
            Panel("Waiting prompt tokens", "short", "Tokens that waiting requests have to "
                  "prefill: the work in front of a new request.",
                  [("replica {{replica}}",
                    "sum by (replica) (flotilla_scheduler_waiting_tokens{REPLICA})")]),
        ]),
        ("Tokens", [
            INTER_TOKEN,
            heat("Inter-token latency by time", "s", "A second band far above the first: steps "
                 "with prefill in them.", ITL, "ROUTER"),
            Panel("Step duration", "s", "What a step takes, p50 and more: the floor of the "
                  "inter-token latency.", quantiles(STEP, "REPLICA")),
        ]),
        ("Requests", [
            Panel("Request duration", "s", "From arrival to the end; follows the lengths of "
                  "answers.",
                  quantiles("flotilla_router_request_duration_seconds", "ROUTER")),
            Panel("Prompt length", "short", "Tokens of prompts. A shift to longer ones raises the "
                  "time to first token.", quantiles("flotilla_router_prompt_tokens", "ROUTER")),
            Panel("Answer length", "short", "Output tokens of requests. A shift to longer ones "
                  "raises the number running.",
                  quantiles("flotilla_router_output_tokens", "ROUTER")),
            Panel("Ended early", "reqps", "Requests cancelled by clients, or by their deadline. "
                  "Many by clients: they find it too slow.",
                  [("{{by}}", rate("flotilla_router_cancelled_total", "ROUTER", "by"))]),
            Panel("Submitted again", "reqps", "Requests that an engine gave back. Each is a pause "
                  "for a client; look at the replicas lost.",
                  [("{{instance}}", rate("flotilla_router_retries_total", "ROUTER", "instance"))]),
            Panel("Share refused", "percentunit", "Refused for want of capacity or time, over 5 "
                  "minutes. Above 1 % alerts.",
                  [("{{model}}", 'model:flotilla_router_rejected:ratio_rate5m{model=~"$model"}')]),
        ]),
    ]),
    "kv": ("flotilla: KV memory", [
        ("Pool", [
            UTILIZATION,
            Panel("Blocks", "short", "Blocks by state. Cached ones are free for whoever needs "
                  "them; few cached and no free ones: prefixes are lost early.",
                  [("{{state}}", 'sum by (state) (flotilla_kv_blocks{REPLICA,state!="total"})')],
                  stacked=True),
            Panel("Waste", "percentunit", "Slots without a token in the blocks of the last step's "
                  "sequences: half a block each, so high only where all are short.",
                  [("replica {{replica}}", "flotilla_kv_waste_ratio{REPLICA}")], maximum=1),
            Panel("Configuration", "none", "Tokens a block, blocks and type of each pool. Replicas "
                  "of a fleet should not differ.",
                  [("{{replica}}: {{num_blocks}} x {{block_size}} {{dtype}}",
                    "flotilla_kv_cache_config_info{REPLICA}")], kind="stat"),
        ]),
        ("Prefix cache", [
            Panel("Hit ratio", "percentunit", "Prompt tokens found in the cache / looked up. It "
                  "should not fall when replicas are added: then prefixes are scattered.",
                  [("replica {{replica}}",
                    rate("flotilla_kv_prefix_hit_tokens_total", "REPLICA", "replica") + " / " +
                    rate("flotilla_kv_prefix_lookup_tokens_total", "REPLICA", "replica"))], maximum=1),
            Panel("Tokens", "cps", "Looked up and found. The difference is computed.",
                  [("looked up", rate("flotilla_kv_prefix_lookup_tokens_total", "REPLICA", "")),
                   ("found", rate("flotilla_kv_prefix_hit_tokens_total", "REPLICA", ""))]),
            Panel("Evictions", "cps", "Cached blocks that gave way to requests, per second. High "
                  "with a falling hit ratio: the pool is too small for the working set.",
                  [("replica {{replica}}",
                    rate("flotilla_kv_prefix_evictions_total", "REPLICA", "replica"))]),
        ]),
        ("Preemption", [
            Panel("Preemptions", "cps", "Requests that gave their blocks back. More than now and "
                  "then: --kv-blocks up, or --max-seqs down.",
                  [("{{mode}}, {{reason}}",
                    rate("flotilla_scheduler_preemptions_total", "REPLICA", "mode, reason"))]),
            Panel("Share preempted", "percentunit", "Preemptions / requests finished, over 10 "
                  "minutes. Above 1 % alerts.",
                  [("replica {{replica}}", "replica:flotilla_scheduler_preempted:ratio_rate10m"
                    '{model=~"$model",replica=~"$replica"}')]),
            Panel("Cost", "percentunit", "Predicted time to copy or compute again what was taken, "
                  "per second: the share of the worker's time that preemption costs.",
                  [("{{mode}}", rate("flotilla_scheduler_preemption_cost_seconds_total", "REPLICA",
                                     "mode"))]),
            Panel("Blocks given back", "cps", "Blocks that preempted requests gave back, per "
                  "second; many for each preemption: long ones are the victims.",
                  [("{{mode}}",
                    rate("flotilla_scheduler_preempted_blocks_total", "REPLICA", "mode"))]),
        ]),
        ("Sequences and tiers", [
            Panel("Forks and copies", "cps", "Sequences that began with another's blocks, and "
                  "blocks copied for them. Copies should not exceed forks by much.",
                  [("forks", rate("flotilla_kv_forks_total", "REPLICA", "")),
                   ("copies", rate("flotilla_kv_block_copies_total", "REPLICA", ""))]),
            Panel("Tier copies", "cps", "Blocks copied out to host or disk and back in. In without "
                  "out for long: old prefixes are used again, as intended.",
                  [("{{direction}}", rate("flotilla_kv_tier_copies_total", "REPLICA", "direction"))]),
            Panel("Blocks in tiers", "short", "Blocks kept in host memory and on disk; at "
                  "--host-blocks + --disk-blocks old ones go.",
                  [("replica {{replica}}", "flotilla_kv_tier_blocks{REPLICA}")]),
        ]),
    ]),
    "scheduler": ("flotilla: scheduler", [
        ("Queue", [
            QUEUE,
            Panel("Outstanding tokens", "short", "Prompt tokens to prefill and output tokens expected, of "
                  "all requests: the load in tokens. Uneven replicas: routing does not balance.",
                  [("replica {{replica}}", "flotilla_scheduler_outstanding_tokens{REPLICA}")]),
            Panel("Finished", "reqps", "Requests by how they ended. error should be 0; deadline "
                  "means they waited or ran too long.",
                  [("{{reason}}",
                    rate("flotilla_scheduler_requests_finished_total", "REPLICA", "reason"))],
                  stacked=True),
            Panel("Share failed", "percentunit", "Accepted requests that ended in an error, over 5 "
                  "minutes. Above 0.1 % alerts: the log names the cause.",
                  [("replica {{replica}}", "replica:flotilla_scheduler_failed:ratio_rate5m"
                    '{model=~"$model",replica=~"$replica"}')]),
            Panel("Overtaking and giving up", "reqps", "Requests that started before an earlier "
                  "one which waited for memory, and requests ended unstarted as they would be "
                  "late.",
                  [("overtook", rate("flotilla_scheduler_bypasses_total", "REPLICA", "")),
                   ("too late", rate("flotilla_scheduler_late_total", "REPLICA", ""))]),
            up_down("Draining", "Whether each scheduler takes new requests.",
                    "1 - flotilla_scheduler_draining{REPLICA}", "serving", "DRAINING"),
        ]),
        ("Steps", [
            Panel("Step duration by phase", "s", "p99 of steps with decodes only, prefill only and "
                  "both. mixed far above decode: smaller chunks (--itl-target-ms).",
                  [("{{phase}}", "histogram_quantile(0.99, sum by (le, phase) "
                    f"(rate({STEP}_bucket{{REPLICA}}[$__rate_interval])))")]),
            Panel("Steps", "cps", "Steps per second by phase.",
                  [("{{phase}}", rate(f"{STEP}_count", "REPLICA", "phase"))], stacked=True),
            Panel("Batch size", "short", "Sequences of a step. At --max-seqs with a queue: the "
                  "limit, not memory, holds requests back.",
                  [("mean {{replica}}", mean("flotilla_scheduler_batch_size", "REPLICA", "replica")),
                   *quantiles("flotilla_scheduler_batch_size", "REPLICA")]),
            Panel("Tokens of a step", "short", "Mean prefill and decode tokens of steps that have "
                  "some. Prefill at the budget: prompts queue.",
                  [("{{kind}}", mean("flotilla_scheduler_step_tokens", "REPLICA", "kind"))]),
            STEP_AGE,
            Panel("Plans in flight", "short", "Plans without a result: lag + 1 while busy, so that "
                  "the worker never waits. 0 and 1 in turns under load: planning is late.",
                  [("replica {{replica}}", "flotilla_scheduler_plans_in_flight{REPLICA}")]),
        ]),
        ("Work", [
            Panel("Tokens", "cps", "Prompt tokens computed, found in the cache, and generated.",
                  [("{{kind}}", rate("flotilla_scheduler_tokens_total", "REPLICA", "kind"))]),
            Panel("Time to make a plan", "s", "Mean. Beyond a tenth of the step's duration, "
                  "planning is worth a look.",
                  [("replica {{replica}}",
                    rate("flotilla_scheduler_plan_seconds_total", "REPLICA", "replica") + " / " +
                    rate("flotilla_scheduler_plans_total", "REPLICA", "replica"))]),
            Panel("Speculation", "cps", "Draft tokens and those that were accepted; none with "
                  "--speculation off. Few right ones: it does not pay here.",
                  [("{{kind}}",
                    rate("flotilla_scheduler_speculation_tokens_total", "REPLICA", "kind"))]),
        ]),
    ]),
    "worker": ("flotilla: worker", [
        ("Work", [
            Panel("Busy", "percentunit", "Share of time in forward and sampling. Near 100 % the "
                  "replica is at its limit; below with a queue: memory or limits hold it back.",
                  [("replica {{replica}}", "rate(flotilla_worker_compute_seconds_total{REPLICA}"
                    "[$__rate_interval])")], maximum=1),
            Panel("Tokens computed", "cps", "Rows through the model by phase; recomputed ones "
                  "count again.",
                  [("{{phase}}", rate("flotilla_worker_rows_total", "REPLICA", "phase"))],
                  stacked=True),
            Panel("Steps", "cps", "Plans executed per second.",
                  [("replica {{replica}}", rate("flotilla_worker_steps_total", "REPLICA", "replica"))]),
            Panel("Compute per step", "s", "Mean forward and sampling time of a step.",
                  [("replica {{replica}}",
                    rate("flotilla_worker_compute_seconds_total", "REPLICA", "replica") + " / " +
                    rate("flotilla_worker_steps_total", "REPLICA", "replica"))]),
            Panel("Compute per token", "s", "Mean over prefill and decode. Falls as batches grow; "
                  "a rise at equal load means a slower machine: a neighbour, heat, swapping.",
                  [("replica {{replica}}",
                    rate("flotilla_worker_compute_seconds_total", "REPLICA", "replica") + " / " +
                    rate("flotilla_worker_rows_total", "REPLICA", "replica"))]),
            Panel("CPU", "short", "CPU cores in use by each rank, and by the process that started "
                  "them (with --launcher none it computes itself); at --threads while busy. "
                  "Uneven ranks wait for each other.",
                  [("replica {{replica}} rank {{rank}}", "sum by (replica, instance, rank) "
                    "(rate(flotilla_worker_rank_cpu_seconds_total{REPLICA}[$__rate_interval]))"),
                   ("replica {{replica}} {{role}}", 'rate(process_cpu_seconds_total{REPLICA,role="worker"}'
                    "[$__rate_interval])")]),
        ]),
        ("Health", [
            Panel("Epochs and replicas lost", "short", "Since yesterday, as the worker and as its "
                  "scheduler count. Each is a pause for all requests of the replica.",
                  [(f"{what} {{{{replica}}}}", f"sum by (replica) (increase({metric}{{REPLICA}}[1d]))")
                   for what, metric in (
                       ("epochs, worker", "flotilla_worker_epochs_lost_total"),
                       ("replicas, scheduler", "flotilla_worker_groups_lost_total"))]),
            Panel("Requests computed again", "short", "Since yesterday: running requests whose "
                  "blocks were lost with a replica. They go on, after a pause.",
                  [("replica {{replica}}", "sum by (replica) "
                    "(increase(flotilla_scheduler_recomputed_requests_total{REPLICA}[1d]))")]),
            Panel("Computes on", "none", "What ranks compute on. Where it is cpu on a node with a "
                  "GPU, the worker's log says why (model loaded).",
                  [("{{backend}}, replica {{replica}}", "flotilla_worker_backend{REPLICA} == 1")],
                  kind="stat"),
            Panel("Weights", "bytes", "Memory of the weights; constant.",
                  [("replica {{replica}}", "flotilla_worker_weight_bytes{REPLICA}")]),
            Panel("Activations", "bytes", "Memory of the buffers of a step; constant.",
                  [("replica {{replica}}", "flotilla_worker_buffer_bytes{REPLICA}")]),
            Panel("Resident memory", "bytes", "Of each rank, the model's file and what ranks "
                  "share included, and of worker processes; above weights + pool + 200 MB "
                  "and growing: report it.",
                  [("replica {{replica}} rank {{rank}}",
                    "flotilla_worker_rank_resident_memory_bytes{REPLICA}"),
                   ("replica {{replica}} {{role}}",
                    'process_resident_memory_bytes{REPLICA,role="worker"}')]),
        ]),
    ]),
}
