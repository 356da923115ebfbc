// Parts of `kvblend store`, for the sources of that command only.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "engine/store/disk/folder_audit.h"
#include "server/cli/command.h"

namespace kvblend::server::cli {

void AddStoreGcCommand(CLI::App& store, CommandContext& context);

/// "/var/chunks/" and "/var/chunks" are the same folder, written the second way.
std::string FolderPath(std::string path);

/// For AuditOptions::on_progress: a bar on terminals.
std::function<void(const store::AuditProgress&)> ShowProgress(Terminal& terminal, const char* label);

}  // namespace kvblend::server::cli
