// What clients ask of the engine and what they get back: plain data, no behaviour, no transport.
//
// Units: *_tokens count tokens, *_bytes bytes, *_seconds seconds. Text is UTF-8; the engine refuses anything
// else with kInvalidArgument. Defaults here are the defaults of the gRPC API.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/time/time.h"
#include "engine/api/chunk_key.h"
#include "engine/api/request_trace.h"
#include "engine/api/tier.h"

namespace kvblend {

/// How tokens to recompute are chosen. See docs/algorithm.md.
enum class Policy : uint8_t {
  kQuery,   // what the question attends to (guided; the default)
  kHkvd,    // high KV deviation at one layer (CacheBlend, EuroSys 2025)
  kLink,    // the first `link_tokens` tokens of every chunk (EPIC's LegoLink)
  kNone,    // nothing: plain reuse
  kAll,     // everything: equals full prefill
  kRandom,  // a random share: the control
};

/// What may be reused from the chunk store.
enum class Reuse : uint8_t {
  kChunks,   // every chunk at any position, blended (the default)
  kPrefix,   // only the exact prefix, as prefix caching would
  kNothing,  // full prefill
};

/// In what context a chunk's KV is precomputed.
enum class Anchoring : uint8_t {
  kAnchored,  // behind the system text and lead-in, whose KV is dropped afterwards (the default)
  kIsolated,  // by itself from position 0, as CacheBlend publishes it
};

/// Whose turn comes first when the engine is busy; engine/schedule/scheduler.h has the rules.
enum class Priority : uint8_t { kNormal, kHigh, kLow };

/// Policy hkvd: whether the deviation of V or of K is measured.
enum class DeviationSource : uint8_t { kValue, kKey };

/// Who sets the share of tokens that is recomputed.
enum class RatioMode : uint8_t {
  kFixed,  // the request, or the engine's default
  kAuto,   // the loading controller: as many as can be recomputed while stored KV is read; docs/algorithm.md
};

/// The ratio of requests that do not set it. Each share is in [0, 1].
struct RatioOptions {
  RatioMode mode = RatioMode::kFixed;
  double ratio = 0.15;  // kFixed; with kAuto, within its bounds, until enough has been measured
  double min = 0.15;    // kAuto: the floor that keeps quality
  double max = 0.5;     // kAuto: the ceiling; at least min
  // At least so many tokens are recomputed (or all, if there are fewer), unless the ratio is 0 or the request
  // gives a share; >= 0
  int32_t min_tokens = 64;
};

inline constexpr int kMaxReadNamespaces = 8;

struct BlendOptions {
  Reuse reuse = Reuse::kChunks;
  Anchoring anchoring = Anchoring::kAnchored;
  Policy policy = Policy::kQuery;
  // Share of the reused, inexact chunk tokens to recompute; not used by link, none and all. Where not set,
  // the engine's default holds, except that a ratio without a mode is kFixed.
  std::optional<RatioMode> ratio_mode = std::nullopt;
  std::optional<double> ratio = std::nullopt;  // each as in RatioOptions
  std::optional<double> ratio_min = std::nullopt;
  std::optional<double> ratio_max = std::nullopt;
  int32_t query_layers = 0;  // query: layers of the query pass, from the first; 0 = all
  int32_t hkvd_layer = 1;    // hkvd: layer whose deviation selects; 1 .. num_layers - 1
  DeviationSource hkvd_source = DeviationSource::kValue;
  int32_t link_tokens = 32;  // link: tokens per chunk, >= 0
  uint64_t random_seed = 0;  // random
  bool store_misses = true;  // compute missing chunks behind the response and store them
  bool correction = true;    // apply the learned correction to KV that is reused inexactly, if there is one
  bool spread_deviation = true;  // behind an anchor, and not with link: pass deviations of computed tokens on
  bool explain = false;          // fill PromptReport::explanation
  bool share_prefix = true;      // share pages with sequences that begin with the same exact tokens
  // Namespaces whose chunks may be reused besides the caller's own, which come first. Nothing is stored in
  // them. At most kMaxReadNamespaces, each of at most Caller::kMaxNamespaceBytes.
  std::vector<std::string> read_namespaces = {};

  bool operator==(const BlendOptions&) const = default;
};

struct SamplingOptions {
  int32_t max_tokens = 256;         // [1, context]
  double temperature = 0.0;         // [0, 10]; 0 = greedy
  int32_t top_k = 0;                // >= 0; 0 = off
  double top_p = 1.0;               // (0, 1]; 1 = off
  double min_p = 0.0;               // [0, 1]; 0 = off
  double repetition_penalty = 1.0;  // (0, 10]; 1 = off; for tokens of the question and of the answer so far
  double presence_penalty =
      0.0;  // [-2, 2]; subtracted from the logit of each token that the answer has so far
  double frequency_penalty = 0.0;  // [-2, 2]; likewise, once for each time that the token occurs
  std::map<int32_t, double> logit_bias =
      {};                         // token id -> what is added to its logit, [-100, 100]; up to 1,024
  uint64_t seed = 0;              // 0: chosen by the engine and reported
  std::vector<std::string> stop;  // up to 16 strings, none empty; the match is not part of the text
  bool ignore_eos = false;        // generate on past end-of-text tokens, up to max_tokens: for measurements
  int32_t top_logprobs = -1;      // -1: none; 0: of the sampled token; n <= 20: also of the n most likely
  bool attribution = false;       // fill GenerateResult::attributions; does not change the tokens
};

enum class Role : uint8_t { kUser, kAssistant };

struct Turn {
  Role role = Role::kUser;
  std::string text = {};                 // comes after the chunks, if there are any
  std::string lead_in = {};              // of a user: text before the chunks; may be empty
  std::vector<std::string> chunks = {};  // of a user: the chunks that the prompt of this turn had
};

/// Whether passages are looked for in the text of a prompt without chunks, into which a client may have
/// pasted them, and made chunks, as if the client had sent them as such. engine/prompt/split has the rules.
enum class PromptSplit : uint8_t {
  kNone,      // no: the text stays one text
  kStored,    // the texts of chunks that the namespace knows become chunks
  kPassages,  // paragraphs too, whether they are stored or not
};

struct Prompt {
  std::string system_text = {};           // may be empty: the prompt then has no system block
  std::string lead_in = {};               // text before the chunks inside the user's turn; may be empty
  std::vector<std::string> chunks = {};   // placed as they are, with nothing in between; may be empty
  std::string question = {};              // not empty
  std::vector<Turn> history = {};         // earlier turns, oldest first, between system text and lead-in
  std::optional<PromptSplit> split = {};  // not set: EngineOptions::split_prompts; only without chunks
};

/// Who asks, and for how long they wait.
struct Caller {
  static constexpr size_t kMaxNamespaceBytes = 128;
  std::string tenant_namespace;  // chunks of one are invisible in another; at most kMaxNamespaceBytes
  std::string fairness_key;      // requests queue per key and keys take turns
  absl::Time deadline = absl::InfiniteFuture();
  Priority priority = Priority::kNormal;
  std::shared_ptr<RequestTrace> trace = {};  // Generate and Score note in it where time goes; null: nowhere
  /// Of Generate and Score: called once with how many seconds the request has waited, when its turn comes or
  /// when it is given up before (cancelled, past its deadline, at shutdown). On the engine's thread, or that
  /// of whoever gives it up; it must return quickly. Null: nobody wants to know.
  std::function<void(double seconds)> on_dequeued = nullptr;
};

struct GenerateRequest {
  Caller caller;
  Prompt prompt;
  BlendOptions blend;
  SamplingOptions sampling;
};

/// Teacher-forced log-probabilities of a continuation of the prompt.
struct ScoreRequest {
  Caller caller;
  Prompt prompt;
  BlendOptions blend;
  // Exactly one of the two is given; the text is tokenized on its own.
  std::string continuation;
  std::vector<int32_t> continuation_token_ids;
  bool return_distributions = false;  // also the log-probabilities of the whole vocabulary per position
};

struct PutChunksRequest {
  Caller caller;
  std::string system_text;  // with lead_in the anchor; both as the prompts will have them
  std::string lead_in;
  Anchoring anchoring = Anchoring::kAnchored;
  std::vector<std::string> chunks;
  std::string label;                           // free text shown by List, at most 256 bytes
  std::vector<std::string> chunk_labels = {};  // empty, or one for each chunk instead of `label`
  bool pin = false;
};

/// Which chunks to bring into memory ahead of the prompts that will place them.
struct PrefetchChunksRequest {
  Caller caller;
  std::string system_text;  // this and the next two as in PutChunksRequest
  std::string lead_in;
  Anchoring anchoring = Anchoring::kAnchored;
  std::vector<std::string> chunks;
  std::vector<std::string> read_namespaces = {};  // as in BlendOptions
};

struct PrefetchedChunk {
  std::string key;          // hex
  Tier tier = Tier::kNone;  // where it was found; kNone: nowhere
  int32_t num_tokens = 0;
  std::string refusal = {};  // why memory never takes it; empty: it would
};

/// Cutting a document into chunks as they will be stored; see engine/prompt/document_splitter.h.
struct SplitDocumentRequest {
  Caller caller;
  std::string system_text;  // this and the next two as in PutChunksRequest: they are part of the keys
  std::string lead_in;
  Anchoring anchoring = Anchoring::kAnchored;
  std::string text;
  bool goes_on = false;        // more of the document follows `text`: leave out chunks that need it
  int32_t chunk_tokens = 512;  // [16, context - anchor]
  /// [0, chunk_tokens / 2]. None: 64, or half of chunk_tokens where that is less.
  std::optional<int32_t> overlap_tokens;
  /// Asked between two chunks, on the thread of the call: true ends it with kCancelled. Empty: nobody can go.
  std::function<bool()> gone = nullptr;
};

// --- reports ---------------------------------------------------------------------------------------------

enum class ChunkSource : uint8_t {
  kMiss,         // not in the store: computed in place
  kExact,        // stored KV is exactly what full prefill would give: nothing to recompute
  kBlended,      // reused, some tokens recomputed
  kOtherAnchor,  // blended from an entry that was computed behind another anchor
  kBypassed,     // stored, but computed in place: loading it would have taken longer
};

/// The parts of a prompt, in their order.
enum class PromptPart : uint8_t { kSystem, kHistory, kLeadIn, kChunk, kQuestion };

/// What was done with each token of one part of the prompt.
struct ExplainedSpan {
  PromptPart part = PromptPart::kQuestion;
  int32_t chunk_index = -1;        // into Prompt::chunks; -1 for other parts
  std::vector<std::string> texts;  // what each token adds to the text; together they are the part's text
  std::vector<int32_t> recomputed =
      {};  // indices into `texts` of the tokens that the policy chose, ascending
  // Per token, the score that the policy chose by. Policy query: squares of the question's attention to the
  // token times the length of its value, summed over the voting layers. Policy hkvd: the deviation of its KV.
  // Empty where nothing was measured.
  std::vector<float> scores = {};
};

struct ChunkReport {
  int32_t index = 0;
  ChunkSource source = ChunkSource::kMiss;
  Tier tier = Tier::kNone;
  int32_t num_tokens = 0;
  int32_t recomputed_tokens = 0;  // of num_tokens; all of a miss or a bypassed chunk, none of an exact one
  std::string key;                // hex
};

/// What was to be read from one tier for a prompt.
struct TierRead {
  Tier tier = Tier::kNone;
  int64_t bytes = 0;
  double bytes_per_second = 0;  // as measured before this prompt; 0: never measured
};

/// How the ratio was chosen, and from what.
struct LoadingReport {
  RatioMode mode = RatioMode::kFixed;
  double ratio_min = 0;  // kAuto: the bounds
  double ratio_max = 0;
  double ratio = 0;                      // the ratio that the policy was given
  int32_t bypassed_chunks = 0;           // kAuto: computed because loading them would have taken longer
  bool predicted = false;                // enough had been measured to predict; else the figures below are 0
  double predicted_seconds = 0;          // of load, select and prefill together
  double predicted_load_seconds = 0;     // T_load: reading and placing stored KV, nothing computed beside it
  double predicted_compute_seconds = 0;  // T_compute: the passes, with all stored KV in place
  double compute_seconds_per_token = 0;  // what one more recomputed token costs, through all layers
  std::vector<TierRead> reads = {};      // tiers below host memory that the prompt's chunks are read from
  int64_t skipped_bytes = 0;  // stored KV in layers with sliding windows that no row sees: not loaded
};

struct PromptReport {
  Policy policy = Policy::kQuery;  // effective
  double ratio = 0;  // effective: recomputed / (recomputed + reused) over the reusable, inexact tokens
  Reuse reuse = Reuse::kChunks;
  Anchoring anchoring = Anchoring::kAnchored;
  int32_t prompt_tokens = 0;
  // Tokens at the beginning of the prompt whose KV the engine has kept since an earlier turn, as the answer
  // then saw it. The counts below are of the tokens after these.
  int32_t kept_tokens = 0;
  int32_t kept_exact_tokens = 0;  // of the kept ones, those at the beginning whose KV is that of full prefill
  int32_t exact_tokens = 0;       // reused exactly (prefix)
  int32_t shared_tokens =
      0;  // of the exact ones, those in pages of other sequences: neither loaded nor computed
  int32_t reused_tokens = 0;      // reused inexactly and not recomputed
  int32_t recomputed_tokens = 0;  // tokens that were in the store but were recomputed by the policy
  int32_t computed_tokens = 0;    // tokens not taken from the store: misses, bypassed, history, question
  std::vector<ChunkReport> chunks;
  double queue_seconds = 0;
  double lookup_seconds = 0;   // tokenization, layout, store lookups
  double load_seconds = 0;     // stored KV -> pages
  double stall_seconds = 0;    // the part of load_seconds spent waiting for layers from a slower tier
  double select_seconds = 0;   // query pass or deviation, and the choice
  double prefill_seconds = 0;  // forward passes up to the first token's logits, selection excluded
  double others_seconds = 0;   // others' turns in between: the rest of the time to the first token
  double time_to_first_token_seconds = 0;  // from submission
  LoadingReport loading = {};
  std::string correction =
      {};  // version of the correction of KV reused inexactly; empty: it was not corrected
  std::vector<ExplainedSpan> explanation =
      {};  // with BlendOptions::explain: parts that have tokens, in order
};

struct TokenLogprob {
  int32_t token_id = 0;
  std::string text;    // may hold a part of a UTF-8 character, replaced by U+FFFD
  double logprob = 0;  // natural logarithm, of the model's own distribution (before temperature and filters)
  std::string bytes;   // of the token; a character can be made of the bytes of several tokens
};

struct TextDelta {
  std::string text;  // complete UTF-8 characters; may be empty while a character or stop string is pending
  std::vector<int32_t> token_ids;  // the tokens generated since the last delta
  // How many characters of the answer come before these tokens, those that are held back included.
  int64_t begin_character = 0;
  std::vector<TokenLogprob> logprobs;                   // one per token, when asked for
  std::vector<std::vector<TokenLogprob>> top_logprobs;  // per token, most likely first, when asked for
};

enum class FinishReason : uint8_t { kEndOfText, kStopString, kMaxTokens, kContextFull };

/// How much a token of the answer attends to a chunk: the largest attention that any token of the chunk gets,
/// in the layers that look up earlier text, on a scale where 1 is what these layers give to a token that they
/// repeat (docs/algorithm.md).
struct ChunkAttention {
  int32_t index = 0;    // into Prompt::chunks
  float attention = 0;  // above 0, up to 1
};

/// The chunks that a token of the answer attends to.
struct AttributedToken {
  /// Where its text is in the whole answer; empty where a later token completes the character.
  int64_t begin_byte = 0;
  int64_t end_byte = 0;
  /// The chunks that it attends to most, in descending order. None for the last token of an answer that was
  /// cut off: the model chose it but did not read it.
  std::vector<ChunkAttention> chunks = {};
};

/// Only the first so many tokens of an answer are attributed, so that a report fits into a message.
inline constexpr int32_t kMaxAttributedTokens = 32'768;

struct GenerateResult {
  FinishReason finish_reason = FinishReason::kEndOfText;
  std::string stop_string;  // with kStopString: the one that matched
  int32_t prompt_tokens = 0;
  int32_t completion_tokens = 0;
  uint64_t seed = 0;  // the seed used
  double time_to_first_token_seconds = 0;
  double total_seconds = 0;  // from submission
  /// With SamplingOptions::attribution, if the prompt has chunks: one per token, up to kMaxAttributedTokens.
  std::vector<AttributedToken> attributions = {};
};

struct ScoredToken {
  int32_t token_id = 0;
  std::string text;
  double logprob = 0;
  int32_t top_token_id = 0;  // the most likely token at this position
  double top_logprob = 0;
  std::vector<float> distribution;  // [vocab_size] log-probabilities, when asked for
};

/// One chunk of a document, and what the store has of it.
struct DocumentChunk {
  int64_t begin_byte = 0;  // in SplitDocumentRequest::text
  int64_t end_byte = 0;
  int32_t num_tokens = 0;
  int64_t stored_bytes = 0;  // what its KV takes in the store
  ChunkKey key = {};
  bool stored = false;  // if so, PutChunks would compute and write nothing
};

struct DocumentChunks {
  std::vector<DocumentChunk> chunks;
  int64_t next_byte = 0;  // where the next chunk begins: the size of the text, or less with goes_on
};

struct PutChunkProgress {
  int32_t index = 0;  // into PutChunksRequest::chunks
  int32_t done = 0;   // chunks finished so far, this one included
  int32_t total = 0;
  std::string key;  // hex
  int32_t num_tokens = 0;
  bool already_present = false;
  double compute_seconds = 0;
  bool durable = false;  // on disk: it will be there after a restart
  /// Its own, and those of the text before it where the store had no KV of that; 0 where it was there.
  int32_t computed_tokens = 0;
};

}  // namespace kvblend
