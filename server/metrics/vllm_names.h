// The metrics that mean what one of vLLM's means, under vLLM's names (those of its releases 0.9 and later),
// so that its dashboards and alerts can be used. Pure; any thread.
#pragma once

#include <string>
#include <vector>

#include "prometheus/metric_family.h"

namespace kvblend::server {

/// What there is of our families under "vllm:", with the label model_name. The others are left out.
std::vector<prometheus::MetricFamily> UnderVllmNames(const std::vector<prometheus::MetricFamily>& ours,
                                                     const std::string& model_name);

}  // namespace kvblend::server
