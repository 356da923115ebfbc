#!/usr/bin/env python3
"""Writes dashboards/kvblend.json, Grafana's form of the rows and panels below: make_dashboard.py [FILE].

Every query is of one or more servers, those that `instance` names. What the metrics mean is in docs/metrics.md.
"""

import json
import os
import sys



def of(metric, *matchers):
    """The metric of the servers that the reader of the dashboard has chosen."""
    return metric + "{" + ", ".join(('instance=~"$instance"', *matchers)) + "}"


def rate(metric, *matchers):
    return f"rate({of(metric, *matchers)}[$__rate_interval])"


def quantile(share, metric):
    return f"histogram_quantile({share}, sum by (le) ({rate(metric + '_bucket')}))"


def mean(metric):
    return f"sum({rate(metric + '_sum')}) / sum({rate(metric + '_count')})"


def quantiles(metric):
    return [(quantile(share, metric), f"p{round(share * 100)}") for share in (0.5, 0.95, 0.99)]


SPARED = 'source=~"kept|exact|reused"'

# (row, [(title, unit, [(query, legend)...], what it tells)...])
ROWS = [
    ("What blending saves", [
        ("Time to the first token", "s", quantiles("kvblend_time_to_first_token_seconds"),
         "From a request's arrival to its first token."),
        ("Prompt tokens by where their KV came from", "short",
         [(f"sum by (source) ({rate('kvblend_prompt_tokens_total')})", "{{source}}")],
         "Kept, exact and reused tokens cost next to nothing; recomputed and computed ones are what a prompt's time is spent on."),
        ("Share of prompt tokens not computed", "percentunit",
         [(f"sum({rate('kvblend_prompt_tokens_total', SPARED)}) / sum({rate('kvblend_prompt_tokens_total')})", "kept, exact or reused")], "How much of the prompts was spared."),
        ("Chunks found", "percentunit",
         [(f"sum by (source) ({rate('kvblend_chunk_hits_total')}) / ignoring (source) group_left "
           f"sum({rate('kvblend_chunk_lookups_total')})", "{{source}}")],
         "Share of the chunks of prompts that were in the store. Many of other_anchor: requests disagree on system text or "
         "lead-in."),
        ("Chunks found, by tier", "short", [(f"sum by (tier) ({rate('kvblend_chunk_hits_total')})", "{{tier}}")],
         "Chunks per second, by where they lay."),
        ("Ratio that was recomputed", "percentunit",
         [(f"sum by (policy) ({rate('kvblend_recompute_ratio_sum')}) / sum by (policy) "
           f"({rate('kvblend_recompute_ratio_count')})", "{{policy}}")], "Mean over prompts, by selection policy."),
    ]),
    ("Where the time goes", [
        ("Parts of a prompt's time, means", "s",
         [(mean(f"kvblend_request_{part}_time_seconds"), part) for part in ("queue", "lookup", "load", "select", "prefill", "others")],
         "Added up they are the time to the first token. others: the turns of other requests in between. Loading overlaps with "
         "computing."),
        ("Time in the queue", "s", quantiles("kvblend_request_queue_time_seconds"),
         "What the autoscaler looks at; of requests that were given up there, too."),
        ("Time per output token", "s", quantiles("kvblend_time_per_output_token_seconds"), "Per request, behind the first."),
        ("Whole requests", "s", quantiles("kvblend_e2e_request_latency_seconds"), "To the last token."),
        ("Waiting for slower tiers", "s", [(mean("kvblend_request_stall_time_seconds"), "mean")],
         "The part of loading that computing did not hide."),
        ("Prompt and answer lengths, means", "short",
         [(mean("kvblend_request_prompt_tokens"), "prompt"), (mean("kvblend_request_generation_tokens"), "answer")],
         "Tokens."),
    ]),
    ("Load", [
        ("Requests", "short",
         [(f"sum({of('kvblend_num_requests_running')})", "running"), (f"sum({of('kvblend_num_requests_waiting')})", "waiting"),
          (f"sum({of('kvblend_num_sequences_decoding')})", "answers being written"),
          (f"sum({of('kvblend_num_background_unfinished')})", "chunks to be stored")], "Now, all servers together."),
        ("Calls over gRPC", "reqps", [(f"sum by (method, code) ({rate('kvblend_grpc_calls_total')})", "{{method}} {{code}}")],
         "RESOURCE_EXHAUSTED: the queue is full, or a tenant has reached a limit."),
        ("Calls over HTTP", "reqps", [(f"sum by (method, code) ({rate('kvblend_http_calls_total')})", "{{method}} {{code}}")],
         "With gRPC's codes."),
        ("Tokens generated", "short",
         [(f"sum({rate('kvblend_generation_tokens_total')})", "tokens per second"),
          (f"sum({rate('kvblend_decoded_tokens_total')}) / sum({rate('kvblend_decode_steps_total')})", "answers per step")],
         "More answers per step share the reading of weights."),
        ("KV pages in use", "percentunit", [(of("kvblend_kv_pages_used_ratio"), "{{instance}}")],
         "Near 1 answers wait for pages."),
        ("Calls by tenant", "reqps",
         [(f"topk(10, sum by (tenant) ({rate('kvblend_tenant_requests_total')}))", "{{tenant}}"),
          (f"sum by (tenant, limit) ({rate('kvblend_tenant_refused_requests_total')}) > 0", "{{tenant}} refused: {{limit}}")],
         "The ten that call most, and all that reach a limit. With --api-keys."),
        ("Tokens computed by tenant", "short",
         [(f"topk(10, sum by (tenant) ({rate('kvblend_tenant_computed_tokens_total')}))", "{{tenant}}")],
         "Per second, the ten that cost most. With --api-keys."),
        ("Given up and refused", "reqps",
         [(f"sum by (code) ({rate('kvblend_requests_without_first_token_total')})", "no first token: {{code}}"),
          (f"sum by (status) ({rate('kvblend_http_refused_total')})", "HTTP {{status}}"),
          (f"sum({rate('kvblend_http_evicted_connections_total')})", "idle connections over HTTP, for others"),
          (f"sum({rate('kvblend_grpc_refused_connections_total')})", "connections over gRPC")],
         "Requests that ended before their first token, and what was refused before it was a call."),
        ("Ready", "bool", [(of("kvblend_ready"), "{{instance}}")], "1 while requests are accepted."),
    ]),
    ("Chunk store", [
        ("Store in main memory", "bytes",
         [(of("kvblend_store_bytes"), "{{instance}}"), (of("kvblend_store_budget_bytes"), "{{instance}} may have")],
         "Bytes of stored KV."),
        ("Stored and evicted", "short",
         [(f"sum({rate('kvblend_store_insertions_total')})", "stored"), (f"sum({rate('kvblend_store_evictions_total')})", "evicted"),
          (f"sum({rate('kvblend_background_chunks_failed_total')})", "not stored")],
         "Chunks per second. Evictions that grow while hits fall: the store is too small."),
        ("Disk", "bytes", [(of("kvblend_disk_bytes"), "{{instance}}"), (of("kvblend_disk_quota_bytes"), "{{instance}} may have")],
         "With --chunk-disk-path."),
        ("Disk: reads and trouble", "short",
         [(f"sum({rate('kvblend_disk_reads_total')})", "layers read"), (f"sum({rate('kvblend_disk_read_errors_total')})", "errors"),
          (f"sum({rate('kvblend_disk_quarantined_total')})", "damaged")], "Per second."),
        ("Redis: lookups", "short",
         [(f"sum({rate('kvblend_redis_hits_total')})", "hits"), (f"sum({rate('kvblend_redis_misses_total')})", "misses"),
          (f"sum({rate('kvblend_redis_lookup_errors_total')})", "without an answer")], "With --chunk-redis, per second."),
        ("Redis: nodes that work", "short",
         [(of("kvblend_redis_nodes_working"), "{{instance}}"), (of("kvblend_redis_nodes"), "{{instance}} knows")],
         "As each server sees them."),
    ]),
    ("Learned correction", [
        ("Deviation that is left", "percentunit",
         [(f"avg by (instance) ({of('kvblend_correction_deviation_after')} / {of('kvblend_correction_deviation_before')} > 0)",
           "{{instance}}")], "Share of stored KV's squared deviation from full prefill that remains, mean over layers."),
        ("Learned from", "short",
         [(of("kvblend_correction_tokens"), "{{instance}} tokens"), (of("kvblend_correction_fits_applied_total"),
                                                                     "{{instance}} fits in force"),
          (of("kvblend_correction_replicas_merged"), "{{instance}} other replicas in the last fit")], "Since the beginning."),
        ("Prefill against its prediction", "short", [(mean("kvblend_prefill_prediction_ratio"), "predicted over actual")],
         "The loading controller is right at 1."),
    ]),
]

COLUMNS, WIDTH, HEIGHT = 3, 8, 8


def panel(number, title, unit, queries, description, x, y):
    return {
        "id": number, "type": "timeseries", "title": title, "description": description,
        "datasource": {"type": "prometheus", "uid": "${datasource}"}, "gridPos": {"x": x, "y": y, "w": WIDTH, "h": HEIGHT},
        "fieldConfig": {"defaults": {"unit": unit, "min": 0, "custom": {"fillOpacity": 10, "showPoints": "never"}}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi", "sort": "desc"}},
        "targets": [{"refId": chr(ord("A") + index), "expr": query, "legendFormat": legend}
                    for index, (query, legend) in enumerate(queries)]}


def dashboard():
    panels, y = [], 0
    for row, members in ROWS:
        panels.append({"id": len(panels) + 1, "type": "row", "title": row, "collapsed": False, "panels": [],
                       "gridPos": {"x": 0, "y": y, "w": COLUMNS * WIDTH, "h": 1}})
        y += 1
        for index, (title, unit, queries, description) in enumerate(members):
            panels.append(panel(len(panels) + 1, title, unit, queries, description, index % COLUMNS * WIDTH,
                                y + index // COLUMNS * HEIGHT))
        y += -(-len(members) // COLUMNS) * HEIGHT
    variables = [
        {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus"},
        {"name": "instance", "label": "Server", "type": "query", "multi": True, "includeAll": True, "allValue": ".*",
         "datasource": {"type": "prometheus", "uid": "${datasource}"}, "refresh": 2, "current": {"text": "All", "value": "$__all"},
         "query": {"query": "label_values(kvblend_ready, instance)", "refId": "instances"}}]
    return {"uid": "kvblend", "title": "kvblend", "tags": ["kvblend"], "schemaVersion": 39, "version": 1, "editable": True,
            "refresh": "10s", "time": {"from": "now-1h", "to": "now"}, "templating": {"list": variables}, "panels": panels}


def text():
    """One panel a line, so that a change shows as one."""
    whole = dashboard()
    panels = ",\n    ".join(json.dumps(entry) for entry in whole.pop("panels"))
    fields = [f"  {json.dumps(name)}: {json.dumps(value)}" for name, value in whole.items()]
    return "{\n" + ",\n".join([*fields, f'  "panels": [\n    {panels}\n  ]']) + "\n}\n"


if __name__ == "__main__":
    default = os.path.join(os.path.dirname(os.path.abspath(__file__)), "dashboards/kvblend.json")
    with open(sys.argv[1] if len(sys.argv) > 1 else default, "w", encoding="utf-8") as file:
        file.write(text())
