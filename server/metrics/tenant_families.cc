#include "server/metrics/tenant_families.h"

#include <utility>

#include "prometheus/client_metric.h"
#include "prometheus/metric_type.h"

namespace kvblend::server {
namespace {

using prometheus::MetricFamily;

MetricFamily CounterFamily(const char* name, const char* help) {
  return {name, help, prometheus::MetricType::Counter, {}};
}

void AddCount(int64_t value, std::vector<prometheus::ClientMetric::Label> labels, MetricFamily* family) {
  prometheus::ClientMetric& metric = family->metric.emplace_back();
  metric.counter.value = static_cast<double>(value);
  metric.label = std::move(labels);
}

}  // namespace

std::vector<MetricFamily> TenantFamilies(const std::map<std::string, TenantCounts>& tenants) {
  if (tenants.empty()) return {};
  std::vector<MetricFamily> families = {
      CounterFamily("kvblend_tenant_requests_total",
                    "Calls by tenant, those refused for a limit among them."),
      CounterFamily("kvblend_tenant_computed_tokens_total",
                    "Tokens computed by tenant: of prompts what was not reused, of answers and chunks all."),
      CounterFamily("kvblend_tenant_refused_requests_total",
                    "Calls refused because their tenant had reached a limit, by tenant and limit."),
  };
  for (const auto& [tenant, counts] : tenants) {
    AddCount(counts.requests, {{"tenant", tenant}}, &families[0]);
    AddCount(counts.computed_tokens, {{"tenant", tenant}}, &families[1]);
    for (const auto& [limit, refused] : counts.refused) {
      AddCount(refused, {{"tenant", tenant}, {"limit", limit}}, &families[2]);
    }
  }
  return families;
}

}  // namespace kvblend::server
