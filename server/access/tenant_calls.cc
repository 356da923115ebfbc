#include "server/access/tenant_calls.h"

#include <algorithm>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/retry_delay.h"
#include "base/status_macros.h"
#include "base/steady_time.h"
#include "base/with_message.h"
#include "engine/api/computed_tokens.h"
#include "engine/api/names.h"
#include "engine/api/namespace_limit.h"
#include "engine/api/request.h"
#include "server/convert/enums.h"
#include "server/convert/requests.h"
#include "server/json/json.h"

namespace kvblend::server {
namespace {

int64_t ComputedTokens(const v1::PromptReport& report) {
  return int64_t{report.recomputed_tokens()} + report.computed_tokens();
}
int64_t ComputedTokens(const v1::GenerateEvent& event) {
  return (event.has_prompt() ? ComputedTokens(event.prompt()) : 0) + event.text().token_ids_size();
}
int64_t ComputedTokens(const v1::ScoreEvent& event) {
  return event.has_prompt() ? ComputedTokens(event.prompt()) : 1;
}
int64_t ComputedTokens(const v1::PutChunkProgress& progress) { return progress.computed_tokens(); }

/// A guess, which costs nothing: only the engine's tokenizer knows. English has a token for four bytes or
/// more.
int64_t TokensOf(const std::string& text) { return static_cast<int64_t>(text.size() + 3) / 4; }

template <typename Texts>
int64_t TokensOfAll(const Texts& texts) {
  int64_t tokens = 0;
  for (const std::string& text : texts) tokens += TokensOf(text);
  return tokens;
}

/// Counts as if nothing were reused: only the engine's lookups can tell what is.
int64_t TokensOf(const v1::Prompt& prompt) {
  int64_t tokens = TokensOf(prompt.system_text()) + TokensOf(prompt.lead_in()) + TokensOf(prompt.question()) +
                   TokensOfAll(prompt.chunks());
  for (const v1::Turn& turn : prompt.history()) {
    tokens += TokensOf(turn.text()) + TokensOf(turn.lead_in()) + TokensOfAll(turn.chunks());
  }
  return tokens;
}

/// Tokens that a request may compute: its prompt's, and those behind it.
struct Estimate {
  int64_t prompt = 0;
  int64_t rest = 0;
};
Estimate EstimateOf(const v1::GenerateRequest& request) {
  const v1::SamplingOptions& sampling = request.sampling();
  const int32_t most = sampling.has_max_tokens() ? sampling.max_tokens() : SamplingOptions().max_tokens;
  return {.prompt = TokensOf(request.prompt()), .rest = std::max<int64_t>(most, 0)};
}
Estimate EstimateOf(const v1::ScoreRequest& request) {
  const int64_t given = request.continuation_token_ids().ids_size();
  return {.prompt = TokensOf(request.prompt()), .rest = given + TokensOf(request.continuation_text())};
}
Estimate EstimateOf(const v1::PutChunksRequest& request) {
  return {.prompt = TokensOf(request.system_text()) + TokensOf(request.lead_in()),
          .rest = TokensOfAll(request.chunks())};
}

/// Tokens of the estimate that the event settles, whether or not they had to be computed.
int64_t Known(const v1::GenerateEvent& event, const Estimate& estimate) {
  return event.has_prompt() ? estimate.prompt : event.text().token_ids_size();
}
int64_t Known(const v1::ScoreEvent& event, const Estimate& estimate) {
  return event.has_prompt() ? estimate.prompt : 1;
}
int64_t Known(const v1::PutChunkProgress& progress, const Estimate& estimate) {
  return progress.num_tokens() + (progress.index() == 0 ? estimate.prompt : 0);
}

/// When and how often something was used, and where it lies since, would tell who reads the same corpus what
/// the others ask.
template <typename Response>
absl::StatusOr<Response> LeaveOutUse(absl::StatusOr<Response> response) {
  if (!response.ok()) return response;
  for (v1::ChunkInfo& chunk : *response->mutable_chunks()) {
    chunk.clear_hits();
    chunk.clear_last_used_unix_seconds();
    chunk.clear_tier();
  }
  return response;
}

/// Sums over all tenants would tell what the others store and compute: only the server's limits stay.
void LeaveOutOthers(v1::GetInfoResponse& info) {
  v1::StoreInfo store;
  store.set_budget_bytes(info.store().budget_bytes());
  store.set_pinned_byte_limit(info.store().pinned_byte_limit());
  store.set_namespace_byte_limit(info.store().namespace_byte_limit());
  *info.mutable_store() = store;
  v1::Load load;
  load.set_pages_total(info.load().pages_total());
  *info.mutable_load() = load;
  for (v1::TierInfo& tier : *info.mutable_tiers()) {
    auto& stats = *tier.mutable_stats();
    const auto quota = stats.find("quota_bytes");
    const std::optional<double> bytes = quota == stats.end() ? std::nullopt : std::optional(quota->second);
    stats.clear();
    if (bytes.has_value()) stats["quota_bytes"] = *bytes;
  }
  info.mutable_device()->clear_memory_used_bytes();
  info.clear_correction();
  info.set_totals_left_out(true);
}

/// Where there is no room the engine's message has sums over all tenants, which would tell what the others
/// do: it goes to the log. A message about the tenant's own namespace goes to the tenant too.
absl::Status LeaveOutOthers(const absl::Status& status, const Tenant& tenant) {
  if (tenant.admin || !absl::IsResourceExhausted(status)) return status;
  if (IsLimitOfNamespace(status, tenant.chunk_namespace)) return status;
  absl::Status told = WithMessage(
      status,
      absl::StrCat(RetryDelayOf(status).has_value() ? "the queue is full" : "there is no room for this",
                   ", with what all tenants ask for; admins are told the figures"));
  return LogAs(std::move(told), std::string(status.message()));
}

/// A call's share of its tenant's quota, until nobody holds it any more.
class Place {
 public:
  explicit Place(std::shared_ptr<Quota> quota) : quota_(std::move(quota)) {}
  ~Place() { quota_->End(&hold_); }
  Place(const Place&) = delete;
  Place& operator=(const Place&) = delete;

  Quota* operator->() const { return quota_.get(); }
  Quota::Hold* hold() { return &hold_; }

 private:
  const std::shared_ptr<Quota> quota_;
  Quota::Hold hold_;
};

/// Counts the tokens of events. The call keeps its place until all events are sent, maybe long after the last
/// one.
template <typename Event>
class CountingSink : public EventSink<Event> {
 public:
  CountingSink(std::shared_ptr<Place> place, const Estimate& estimate, const Tenant& tenant,
               std::shared_ptr<EventSink<Event>> sink)
      : place_(std::move(place)), estimate_(estimate), tenant_(tenant), sink_(std::move(sink)) {
    sink_->KeepUntilSent(place_);
  }

  void OnEvent(const Event& event) override {
    (*place_)->AddComputedTokens(ComputedTokens(event), Known(event, estimate_), place_->hold());
    sink_->OnEvent(event);
  }
  void OnDone(const absl::Status& status) override {
    // Tokens of a prompt that was not reported. The hold on the quota for it ends with the rest.
    if (const int64_t tokens = ComputedTokensOf(status); tokens > 0) {
      (*place_)->AddComputedTokens(tokens, 0, place_->hold());
    }
    (*place_)->EndComputing(place_->hold());
    place_ = nullptr;
    sink_->OnDone(LeaveOutOthers(status, tenant_));
  }

 private:
  std::shared_ptr<Place> place_;
  const Estimate estimate_;
  const Tenant tenant_;
  const std::shared_ptr<EventSink<Event>> sink_;
};

class TenantCalls : public Calls {
 public:
  TenantCalls(Calls* calls, const Tenant& tenant, std::shared_ptr<Quota> quota)
      : calls_(*calls), tenant_(tenant), quota_(std::move(quota)) {}

  Started Generate(v1::GenerateRequest request, const CallerContext& caller,
                   std::shared_ptr<EventSink<v1::GenerateEvent>> sink) override {
    return Compute(&Calls::Generate, std::move(request), caller, std::move(sink));
  }
  Started Score(v1::ScoreRequest request, const CallerContext& caller,
                std::shared_ptr<EventSink<v1::ScoreEvent>> sink) override {
    return Compute(&Calls::Score, std::move(request), caller, std::move(sink));
  }
  Started Put(v1::PutChunksRequest request, const CallerContext& caller,
              std::shared_ptr<EventSink<v1::PutChunkProgress>> sink) override {
    return Compute(&Calls::Put, std::move(request), caller, std::move(sink));
  }

  absl::StatusOr<v1::SplitDocumentResponse> Split(v1::SplitDocumentRequest request,
                                                  const CallerContext& caller) override {
    return AskAtLength(&Calls::Split, std::move(request), caller);
  }
  absl::StatusOr<v1::PrefetchChunksResponse> Prefetch(v1::PrefetchChunksRequest request) override {
    KVBLEND_RETURN_IF_ERROR(TakeReadable("read_namespaces", request.mutable_read_namespaces()));
    return AskAtLength(&Calls::Prefetch, std::move(request));
  }
  absl::StatusOr<v1::StatChunksResponse> Stat(v1::StatChunksRequest request) override {
    if (MayRead(request.namespace_())) return AsReader(calls_.Stat(std::move(request)));
    return Ask(&Calls::Stat, std::move(request));
  }
  absl::StatusOr<v1::ListChunksResponse> List(v1::ListChunksRequest request) override {
    if (MayRead(request.namespace_())) return AsReader(calls_.List(std::move(request)));
    return Ask(&Calls::List, std::move(request));
  }
  absl::StatusOr<v1::DeleteChunksResponse> Delete(v1::DeleteChunksRequest request) override {
    return Ask(&Calls::Delete, std::move(request));
  }
  absl::StatusOr<v1::PinChunksResponse> Pin(v1::PinChunksRequest request) override {
    return AskAtLength(&Calls::Pin, std::move(request));
  }
  absl::StatusOr<v1::GetInfoResponse> GetInfo(v1::GetInfoRequest request) override {
    absl::StatusOr<v1::GetInfoResponse> info = Ask(&Calls::GetInfo, std::move(request));
    if (info.ok() && !tenant_.admin) LeaveOutOthers(*info);
    return info;
  }
  absl::StatusOr<v1::CorrectionInfo> UpdateCorrection(v1::UpdateCorrectionRequest request) override {
    if (!tenant_.admin) {
      return absl::PermissionDeniedError(
          absl::StrCat("tenant '", tenant_.name, "' may not steer what the server learns; allowed: admins"));
    }
    return calls_.UpdateCorrection(std::move(request));
  }
  absl::Status CheckHealth() override { return calls_.CheckHealth(); }

 private:
  template <typename Request>
  absl::Status TakeNamespace(Request& request) const {
    KVBLEND_RETURN_IF_ERROR(CheckNamespace("namespace", request.namespace_()));
    if (!request.namespace_().empty() && request.namespace_() != tenant_.chunk_namespace) {
      const std::string allowed =
          absl::StrCat("; allowed: '", tenant_.chunk_namespace, "', the one of the key, or none");
      return LogAs(
          absl::PermissionDeniedError(absl::StrCat("namespace is ", Quoted(request.namespace_()), allowed)),
          absl::StrCat("namespace is another", allowed));
    }
    request.set_namespace_(tenant_.chunk_namespace);
    return absl::OkStatus();
  }

  template <typename Response>
  absl::StatusOr<Response> AsReader(absl::StatusOr<Response> response) const {
    return tenant_.admin ? std::move(response) : LeaveOutUse(std::move(response));
  }

  bool MayRead(const std::string& name) const {
    return std::find(tenant_.read.begin(), tenant_.read.end(), name) != tenant_.read.end();
  }

  /// All that the tenant may read, unless the request names some of it.
  absl::Status TakeReadable(const std::string& field,
                            google::protobuf::RepeatedPtrField<std::string>* names) const {
    for (int i = 0; i < names->size(); ++i) {
      const std::string& name = names->Get(i);
      if (MayRead(name) || name == tenant_.chunk_namespace) continue;
      KVBLEND_RETURN_IF_ERROR(CheckNamespace(absl::StrCat(field, "[", i, "]"), name));
      const std::string allowed =
          absl::StrCat("; allowed: those that the key may read (",
                       tenant_.read.empty() ? "none" : absl::StrJoin(tenant_.read, ", "), ")");
      return LogAs(absl::PermissionDeniedError(absl::StrCat(field, " has ", Quoted(name), allowed)),
                   absl::StrCat(field, " has another", allowed));
    }
    if (names->empty()) names->Assign(tenant_.read.begin(), tenant_.read.end());
    return absl::OkStatus();
  }

  template <typename Request>
  absl::Status TakePriority(Request& request) const {
    if (request.priority() == v1::PRIORITY_UNSPECIFIED) {
      request.set_priority(ToWire<v1::Priority>(tenant_.priority));
      return absl::OkStatus();
    }
    const std::optional<Priority> asked = FromWire<Priority>(request.priority());
    if (!asked.has_value() || !IsAbove(*asked, tenant_.max_priority)) return absl::OkStatus();
    return absl::PermissionDeniedError(absl::StrCat("priority is '", std::string(Name(*asked)),
                                                    "'; allowed: at most the key's, '",
                                                    std::string(Name(tenant_.max_priority)), "'"));
  }

  template <typename Request, typename Response, typename... Caller>
  absl::StatusOr<Response> Ask(absl::StatusOr<Response> (Calls::*call)(Request, Caller...), Request request,
                               std::type_identity_t<Caller>... caller) {
    KVBLEND_RETURN_IF_ERROR(TakeNamespace(request));
    absl::StatusOr<Response> response = (calls_.*call)(std::move(request), caller...);
    if (!response.ok()) return LeaveOutOthers(response.status(), tenant_);
    return response;
  }

  /// For calls that take time and threads, as computing does.
  template <typename Request, typename Response, typename... Caller>
  absl::StatusOr<Response> AskAtLength(absl::StatusOr<Response> (Calls::*call)(Request, Caller...),
                                       Request request, std::type_identity_t<Caller>... caller) {
    Place place(quota_);
    KVBLEND_RETURN_IF_ERROR(quota_->Begin(place.hold()));
    return Ask(call, std::move(request), caller...);
  }

  template <typename Request, typename Event>
  Started Compute(Started (Calls::*call)(Request, const CallerContext&, std::shared_ptr<EventSink<Event>>),
                  Request request, CallerContext caller, std::shared_ptr<EventSink<Event>> sink) {
    KVBLEND_RETURN_IF_ERROR(TakeNamespace(request));
    KVBLEND_RETURN_IF_ERROR(TakePriority(request));
    if constexpr (!std::is_same_v<Request, v1::PutChunksRequest>) {
      KVBLEND_RETURN_IF_ERROR(
          TakeReadable("blend.read_namespaces", request.mutable_blend()->mutable_read_namespaces()));
    }
    caller.client = tenant_.name;
    const Estimate estimate = EstimateOf(request);
    auto place = std::make_shared<Place>(quota_);
    KVBLEND_RETURN_IF_ERROR(
        quota_->BeginComputing(estimate.prompt + estimate.rest, SteadyNow(), place->hold()));
    Started started = (calls_.*call)(
        std::move(request), caller,
        std::make_shared<CountingSink<Event>>(std::move(place), estimate, tenant_, std::move(sink)));
    if (!started.ok()) return LeaveOutOthers(started.status(), tenant_);
    return started;
  }

  Calls& calls_;
  const Tenant tenant_;
  const std::shared_ptr<Quota> quota_;
};

}  // namespace

std::shared_ptr<Calls> MakeTenantCalls(Calls* calls, const Tenant& tenant, std::shared_ptr<Quota> quota) {
  return std::make_shared<TenantCalls>(calls, tenant, std::move(quota));
}

}  // namespace kvblend::server
