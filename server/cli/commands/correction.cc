// kvblend correction: what a server learns of stored KV while serving, and whether it goes on.
#include <CLI/CLI.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "engine/api/names.h"
#include "server/cli/command.h"
#include "server/cli/flags.h"
#include "server/convert/enums.h"
#include "server/convert/message_json.h"

namespace kvblend::server::cli {
namespace {

constexpr char kCorrectionExamples[] =
    R"(ACTION is show (the default), freeze (learn no more; what is in force stays), learn (go on), or reset (forget
what was learned; the correction that the server was started with is in force again).

Examples:
  kvblend correction
  kvblend correction freeze --server gpu-7:50051
  kvblend correction show --json | jq .deviation_after
)";

struct CorrectionFlags {
  Connection connection;
  std::string action = std::string(Name(CorrectionAction::kShow));
  bool json = false;
};

void PrintForPeople(const v1::CorrectionInfo& info, std::ostream& out) {
  out << absl::StreamFormat("in force      %s\n",
                            info.version().empty() ? "none: stored KV is placed as it is"
                                                   : absl::StrCat("version ", info.version(),
                                                                  info.learned() ? ", learned while serving"
                                                                                 : ", as given at the start"))
      << absl::StreamFormat("learning      %s\n", Name(info.learning()))
      << absl::StreamFormat("seen          %d tokens; %d chunks to fit, %d to judge by, %d waiting\n",
                            info.tokens(), info.fitted_chunks(), info.kept_back_chunks(),
                            info.waiting_chunks())
      << absl::StreamFormat("fits          %d tried, %d applied since the start\n", info.fits(),
                            info.fits_applied());
  if (info.shared()) {
    out << absl::StreamFormat(
        "shared        %d other replicas found, %d in the last fit; published %d times, %d refused, %d failures\n",
        info.replicas_found(), info.replicas_merged(), info.moments_published(), info.moments_refused(),
        info.sharing_failures());
  }
  if (info.deviation_before().empty()) return;
  out << "layer  deviation as stored  corrected\n";
  for (int layer = 0; layer < info.deviation_before_size() && layer < info.deviation_after_size(); ++layer) {
    out << absl::StreamFormat("%5d  %19.5f  %9.5f\n", layer, info.deviation_before(layer),
                              info.deviation_after(layer));
  }
}

absl::Status Run(const CorrectionFlags& flags, CommandContext& context) {
  KVBLEND_ASSIGN_OR_RETURN(const auto action, ParseName<CorrectionAction>("action", flags.action));
  KVBLEND_ASSIGN_OR_RETURN(Client client, context.Connect(flags.connection));
  v1::UpdateCorrectionRequest request;
  request.set_action(ToWire<v1::CorrectionAction>(action));
  KVBLEND_ASSIGN_OR_RETURN(const v1::CorrectionInfo info, client.calls().UpdateCorrection(request));
  if (flags.json) {
    context.terminal.PrintLine(MessageToJson(info));
  } else {
    PrintForPeople(info, context.terminal.out);
    context.terminal.out << std::flush;
  }
  return absl::OkStatus();
}

}  // namespace

void AddCorrectionCommand(CLI::App& root, CommandContext& context) {
  const auto [command, flags] = AddCommand<CorrectionFlags>(
      root, context, "correction",
      "Show, freeze, continue or reset what a server learns of stored KV while serving", kCorrectionExamples,
      Run);
  AddConnectionFlags(command, InProcess::kServerOnly, flags.connection);
  command.add_option("action", flags.action, "show, freeze, learn or reset")->type_name("ACTION");
  command.add_flag("--json", flags.json, "One JSON object");
}

}  // namespace kvblend::server::cli
