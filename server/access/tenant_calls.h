// The calls as one tenant may make them.
#pragma once

#include <memory>

#include "server/access/key_file.h"
#include "server/access/quota.h"
#include "server/calls/calls.h"

namespace kvblend::server {

/// Every call has the tenant's namespace: a request that names another is kPermissionDenied, so nothing of
/// other tenants can be listed, hit, pinned or removed; but for the namespaces that the tenant may read,
/// whose chunks its prompts use behind its own, and which it may list. What tells of the others' work is left
/// out of GetInfo, unless an admin asks. A request has the tenant's priority, or what it asks for, up to the
/// tenant's most. Calls that compute count against the quota, and the tenant is the client whose requests
/// take turns. Only admins may make UpdateCorrection. `calls` must outlive it.
std::shared_ptr<Calls> MakeTenantCalls(Calls* calls, const Tenant& tenant, std::shared_ptr<Quota> quota);

}  // namespace kvblend::server
