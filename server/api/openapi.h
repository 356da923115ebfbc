// The API's description for machines.
#pragma once

#include <string>

namespace kvblend::server {

/// openapi.json of this folder, which is compiled in.
std::string OpenApiDocument();

}  // namespace kvblend::server
