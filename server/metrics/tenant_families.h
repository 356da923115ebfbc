// What each tenant uses, read at scrape time.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "prometheus/metric_family.h"

namespace kvblend::server {

/// What one tenant has asked for since the server started.
struct TenantCounts {
  int64_t requests = 0;
  int64_t computed_tokens = 0;
  std::map<std::string, int64_t>
      refused;  // by limit, as the key file names it; those that never were as well
};

/// By tenant. Counters with the label `tenant`; none without tenants.
std::vector<prometheus::MetricFamily> TenantFamilies(const std::map<std::string, TenantCounts>& tenants);

}  // namespace kvblend::server
