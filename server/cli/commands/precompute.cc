// kvblend precompute: a corpus of documents into the chunk store, ahead of the prompts that use them.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "engine/text/utf8.h"
#include "server/cli/command.h"
#include "server/cli/files.h"
#include "server/cli/flags.h"
#include "server/cli/precompute/call_gate.h"
#include "server/cli/precompute/chunk_file.h"
#include "server/cli/precompute/corpus_progress.h"
#include "server/cli/precompute/corpus_reader.h"
#include "server/cli/precompute/document_split.h"
#include "server/cli/precompute/put_queue.h"
#include "server/cli/precompute/stored_check.h"
#include "server/cli/tier_stats.h"
#include "server/config/value_checks.h"

namespace kvblend::server::cli {
namespace {

constexpr char kPrecomputeExamples[] =
    R"(A chunk is found by prompts that place the same text behind the same system text and lead-in: take the
texts from the file of --output. What is stored is skipped, so that after an interruption the same command
goes on where it was. Exit code 5: done, but some of the input could not be used.

Examples:
  kvblend precompute docs/ --lead-in $'Passages:\n\n' --output chunks.jsonl
  kvblend precompute corpus.jsonl --jsonl-field body --dry-run
  kvblend precompute docs/ --model model.gguf --chunk-disk-path /var/lib/kvblend/chunks
)";

struct PrecomputeFlags {
  Connection connection;
  CallerFlags caller;
  std::vector<std::string> paths;
  FieldFlags split_fields;  // of v1::SplitDocumentRequest
  FieldFlags put_fields;    // of v1::PutChunksRequest
  std::string text_field = CorpusReader::Options().text_field;
  std::string id_field = CorpusReader::Options().id_field;
  std::string system_file;
  std::string lead_in_file;
  int in_flight = PutQueue::Options().max_in_flight;
  std::string output;
  bool dry_run = false;
  bool strict = false;
  bool json = false;
};

constexpr FieldFlag kSplitFlags[] = {
    {"--chunk-tokens", "chunk_tokens", "Most tokens of a chunk; default 512", "N"},
    {"--overlap-tokens", "overlap_tokens",
     "Tokens that a chunk shares with the one before it; default 64, or half of --chunk-tokens if less",
     "N"}};
constexpr FieldFlag kPinFlags[] = {{"--pin", "pin", "Never evict these chunks", ""}};

// The most that a label may have.
constexpr size_t kMaxLabelBytes = 256;

/// The document and where in it the chunk begins; of a long name, its end.
std::string LabelOf(const Document& document, int64_t begin_byte) {
  std::string label;
  text::AppendReplacingInvalidUtf8(absl::StrCat(document.Name(), "@", begin_byte), /*keep_incomplete=*/false,
                                   &label);
  if (label.size() <= kMaxLabelBytes) return label;
  size_t cut = label.size() - kMaxLabelBytes + 3;
  while ((static_cast<unsigned char>(label[cut]) & 0xC0) == 0x80) ++cut;
  return absl::StrCat("...", label.substr(cut));
}

class Precompute {
 public:
  Precompute(const PrecomputeFlags& flags, CommandContext& context) : flags_(flags), context_(context) {}

  absl::Status Run() {
    if (flags_.output == "-" && (flags_.json || flags_.dry_run)) {
      return absl::InvalidArgumentError(absl::StrCat("--output is -, but ",
                                                     flags_.json ? "--json" : "--dry-run",
                                                     " writes to standard output too; allowed: a file"));
    }
    KVBLEND_RETURN_IF_ERROR(MakeRequests());
    if (!flags_.connection.engine_options.model_path.empty() && !flags_.dry_run &&
        flags_.connection.engine_options.chunk_disk_path.empty()) {
      return absl::InvalidArgumentError(
          "with --model the chunks need a place that outlives this process: give --chunk-disk-path DIR");
    }
    KVBLEND_ASSIGN_OR_RETURN(CorpusReader corpus,
                             CorpusReader::Open({.paths = flags_.paths,
                                                 .text_field = flags_.text_field,
                                                 .id_field = flags_.id_field,
                                                 .skipped_file = flags_.output},
                                                [this](const absl::Status& what, int64_t input_bytes) {
                                                  return OnBad(what, input_bytes);
                                                }));
    if (corpus.num_files() == 0 && num_bad_ == 0) {
      return absl::InvalidArgumentError(
          "nothing to read: there is no .txt, .md or .jsonl file in the folders given");
    }
    KVBLEND_ASSIGN_OR_RETURN(Client client, context_.Connect(flags_.connection));
    client_.emplace(std::move(client));
    gate_.emplace(context_.cancellation, CallGate::Options{.deadline = flags_.caller.deadline()});
    KVBLEND_ASSIGN_OR_RETURN(const v1::GetInfoResponse before, GetInfo());
    if (!flags_.output.empty()) {
      KVBLEND_ASSIGN_OR_RETURN(output_, ChunkFile::Create(flags_.output, context_.terminal.out));
    }
    progress_.emplace(context_.terminal, corpus.total_bytes());
    for (const absl::Status& bad : bad_before_start_) progress_->Warn(std::string(bad.message()));
    progress_->Update([&](CorpusCounts& counts) { counts.bad_inputs = num_bad_; });
    absl::Status status = flags_.caller.Explain(PutAll(corpus));
    const CorpusCounts counts = progress_->counts();
    const double seconds = progress_->seconds();
    progress_.reset();
    if (status.ok() && !flags_.dry_run)
      status = LookAtEnd(counts, FindTier(before, v1::TIER_DISK) != nullptr);
    if (status.ok() && output_ != nullptr) status = output_->Finish();
    if (status.ok() && corpus.num_ignored_files() > 0) {
      context_.terminal.PrintNote(
          absl::StrCat(Counted(corpus.num_ignored_files(), "file"), " in the folders ",
                       corpus.num_ignored_files() == 1 ? "is" : "are", " neither .txt nor .md nor .jsonl"));
    }
    if (flags_.dry_run) {
      if (status.ok()) status = PrintEstimate(counts, before);
    } else {
      Summarize(counts, seconds, before.store().namespace_byte_limit(), status);
    }
    KVBLEND_RETURN_IF_ERROR(status);
    if (counts.bad_inputs == 0) return absl::OkStatus();
    return absl::DataLossError(
        absl::StrCat(Counted(counts.bad_inputs, "input"), " could not be used; everything else was done"));
  }

 private:
  /// Fills put_ and split_ but for chunks' texts and labels: both have the same anchor.
  absl::Status MakeRequests() {
    KVBLEND_RETURN_IF_ERROR(flags_.put_fields.Apply(put_));
    if (!flags_.system_file.empty()) {
      KVBLEND_ASSIGN_OR_RETURN(*put_.mutable_system_text(), ReadFlagText(flags_.system_file));
    }
    if (!flags_.lead_in_file.empty()) {
      KVBLEND_ASSIGN_OR_RETURN(*put_.mutable_lead_in(), ReadFlagText(flags_.lead_in_file));
    }
    split_.set_namespace_(put_.namespace_());
    split_.set_system_text(put_.system_text());
    split_.set_lead_in(put_.lead_in());
    split_.set_anchoring(put_.anchoring());
    return flags_.split_fields.Apply(split_);
  }

  absl::Status OnBad(const absl::Status& what, int64_t input_bytes) {
    if (flags_.strict) return what;
    ++num_bad_;
    if (!progress_.has_value()) {
      bad_before_start_.push_back(what);
      return absl::OkStatus();
    }
    progress_->Warn(std::string(what.message()));
    progress_->Update([&](CorpusCounts& counts) {
      ++counts.bad_inputs;
      counts.input_bytes += input_bytes;
      counts.present_input_bytes += input_bytes;
    });
    return absl::OkStatus();
  }

  absl::StatusOr<v1::GetInfoResponse> GetInfo() {
    v1::GetInfoRequest request;
    request.set_namespace_(put_.namespace_());
    return gate_->Ask<v1::GetInfoResponse>([&] { return client_->calls().GetInfo(request); });
  }

  absl::Status PutAll(CorpusReader& corpus) {
    std::optional<PutQueue> queue;
    if (!flags_.dry_run) {
      queue.emplace(*client_, context_.cancellation, *gate_,
                    PutQueue::Options{.request = put_, .max_in_flight = flags_.in_flight},
                    [this](const v1::PutChunkProgress& progress, const ChunkToPut& chunk) {
                      OnStored(progress, chunk);
                    });
    }
    while (true) {
      if (context_.cancellation.requested()) return absl::CancelledError("interrupted");
      KVBLEND_ASSIGN_OR_RETURN(const std::optional<Document> document, corpus.Next());
      if (!document.has_value()) break;
      if (absl::Status status = Split(*document, queue.has_value() ? &*queue : nullptr); !status.ok()) {
        // What has failed in the queue stopped the splitting as well.
        if (queue.has_value() && !queue->status().ok()) return queue->status();
        return status;
      }
      progress_->Update([](CorpusCounts& counts) { ++counts.documents; });
    }
    return queue.has_value() ? queue->Finish() : absl::OkStatus();
  }

  absl::Status Split(const Document& document, PutQueue* queue) {
    const double input_per_text =
        static_cast<double>(document.input_bytes) / static_cast<double>(document.text.size());
    const SplitCall split = [this](const v1::SplitDocumentRequest& request) {
      return gate_->Ask<v1::SplitDocumentResponse>(
          [&] { return client_->calls().Split(request, {.client = "", .deadline = gate_->deadline()}); });
    };
    return SplitInPieces(
        split, split_, document.text, [&](const v1::DocumentChunk& chunk, int64_t own_bytes) -> absl::Status {
          if (context_.cancellation.requested()) return absl::CancelledError("interrupted");
          ChunkToPut put{
              .text = document.text.substr(static_cast<size_t>(chunk.begin_byte()),
                                           static_cast<size_t>(chunk.end_byte() - chunk.begin_byte())),
              .label = LabelOf(document, document.begin_byte + chunk.begin_byte()),
              .stored_bytes = chunk.stored_bytes(),
              .input_bytes = static_cast<int64_t>(static_cast<double>(own_bytes) * input_per_text)};
          if (output_ != nullptr) KVBLEND_RETURN_IF_ERROR(output_->Write(document, chunk, put.text));
          // Pinning is for the engine to do, whether it has the chunk or not.
          if (queue != nullptr && (!chunk.stored() || put_.pin())) return queue->Add(std::move(put));
          OnSeen(chunk, put);
          return absl::OkStatus();
        });
  }

  /// A chunk that is not sent: it is there, or this is a dry run.
  void OnSeen(const v1::DocumentChunk& chunk, const ChunkToPut& put) {
    progress_->Update([&](CorpusCounts& counts) {
      // A dry run computes nothing, so that the store has not heard of what came before.
      const bool repeated = seen_keys_.contains(chunk.key());
      if (chunk.stored() && !repeated && known_keys_.size() < kMaxKnownKeys) {
        known_keys_.push_back(chunk.key());
      }
      Add(chunk.key(), put, chunk.num_tokens(), chunk.stored() || repeated, counts);
    });
  }

  void OnStored(const v1::PutChunkProgress& progress, const ChunkToPut& chunk) {
    progress_->Update([&](CorpusCounts& counts) {
      Add(progress.key(), chunk, progress.num_tokens(), progress.already_present(), counts);
      counts.compute_seconds += progress.compute_seconds();
    });
  }

  /// Called within progress_->Update, which lets one thread in at a time.
  void Add(const std::string& key, const ChunkToPut& chunk, int32_t num_tokens, bool was_there,
           CorpusCounts& counts) {
    if (seen_keys_.insert(key).second) {
      ++counts.chunks;
      counts.tokens += num_tokens;
      counts.stored_bytes += chunk.stored_bytes;
    }
    counts.input_bytes += chunk.input_bytes;
    counts.computed_chunks += was_there ? 0 : 1;
    counts.present_input_bytes += was_there ? chunk.input_bytes : 0;
    counts.computed_tokens += was_there ? 0 : num_tokens;
  }

  void Summarize(const CorpusCounts& counts, double seconds, int64_t room, const absl::Status& status) {
    const double rate = seconds > 0 ? static_cast<double>(counts.computed_tokens) / seconds : 0;
    if (flags_.json) {
      context_.terminal.PrintJson({{"documents", counts.documents},
                                   {"bad_inputs", counts.bad_inputs},
                                   {"chunks", counts.chunks},
                                   {"tokens", counts.tokens},
                                   {"stored_bytes", counts.stored_bytes},
                                   {"computed_chunks", counts.computed_chunks},
                                   {"computed_tokens", counts.computed_tokens},
                                   {"compute_seconds", counts.compute_seconds},
                                   {"seconds", seconds},
                                   {"store_bytes_limit", room},
                                   {"missing_at_end", at_end_ ? OrderedJson(at_end_->missing) : nullptr},
                                   {"not_durable", at_end_ ? OrderedJson(at_end_->not_durable) : nullptr},
                                   {"complete", status.ok()}});
      return;
    }
    context_.terminal.PrintNote(absl::StrFormat(
        "%s, %s, %s, %s: %d computed in %s (%.0f tokens/s), %d %s there already",
        Counted(counts.documents, "document"), Counted(counts.chunks, "chunk"),
        Counted(counts.tokens, "token"), HumanBytes(counts.stored_bytes), counts.computed_chunks,
        HumanSeconds(seconds), rate, counts.present_chunks(), counts.present_chunks() == 1 ? "was" : "were"));
    if (!status.ok() && context_.cancellation.requested()) {
      context_.terminal.PrintNote("What is stored stays; the same command goes on from here.");
    }
  }

  /// Fails for chunks that are not where they should be. Only those of the corpus are asked for: others come
  /// and go as other clients want it.
  absl::Status LookAtEnd(const CorpusCounts& counts, bool has_disk) {
    KVBLEND_ASSIGN_OR_RETURN(at_end_,
                             CheckStored(client_->calls(), *gate_, put_.namespace_(), seen_keys_, has_disk));
    if (at_end_->total() == 0) return absl::OkStatus();
    KVBLEND_ASSIGN_OR_RETURN(const v1::GetInfoResponse after, GetInfo());
    return Explain(*at_end_, counts.chunks, counts.stored_bytes, after);
  }

  /// Tokens per second of the chunks that were computed before, as far as the store knows; 0: none.
  absl::StatusOr<double> KnownRate() {
    if (known_keys_.empty()) return 0;
    v1::StatChunksRequest request;
    request.set_namespace_(put_.namespace_());
    request.mutable_keys()->Assign(known_keys_.begin(), known_keys_.end());
    KVBLEND_ASSIGN_OR_RETURN(const v1::StatChunksResponse known, gate_->Ask<v1::StatChunksResponse>([&] {
      return client_->calls().Stat(request);
    }));
    double tokens = 0;
    double seconds = 0;
    for (const v1::ChunkInfo& chunk : known.chunks()) {
      if (chunk.compute_seconds() <= 0) continue;
      tokens += chunk.num_tokens();
      seconds += chunk.compute_seconds();
    }
    return seconds > 0 ? tokens / seconds : 0;
  }

  absl::Status PrintEstimate(const CorpusCounts& counts, const v1::GetInfoResponse& info) {
    KVBLEND_ASSIGN_OR_RETURN(const double rate, KnownRate());
    const int64_t room = info.store().namespace_byte_limit();
    if (counts.stored_bytes > room) {
      context_.terminal.PrintWarning(
          "the room in the store is smaller than the corpus: chunks will be evicted");
    }
    if (flags_.json) {
      OrderedJson estimate = {{"documents", counts.documents},
                              {"bad_inputs", counts.bad_inputs},
                              {"chunks", counts.chunks},
                              {"tokens", counts.tokens},
                              {"stored_bytes", counts.stored_bytes},
                              {"store_bytes_limit", room},
                              {"chunks_to_compute", counts.computed_chunks},
                              {"tokens_to_compute", counts.computed_tokens}};
      if (rate > 0) estimate["estimated_seconds"] = static_cast<double>(counts.computed_tokens) / rate;
      context_.terminal.PrintJson(estimate);
      return absl::OkStatus();
    }
    const std::string time =
        counts.computed_tokens == 0 ? "none: everything is there"
        : rate > 0                  ? absl::StrFormat("%s, at %.0f tokens/s as measured before",
                                                      HumanSeconds(static_cast<double>(counts.computed_tokens) / rate), rate)
                                    : "not known: the store has none of these chunks to tell from";
    context_.terminal.out << absl::StreamFormat("documents      %d\n", counts.documents)
                          << absl::StreamFormat("chunks         %d, of which %d are there already\n",
                                                counts.chunks, counts.present_chunks())
                          << absl::StreamFormat("tokens         %d, to compute %d\n", counts.tokens,
                                                counts.computed_tokens)
                          << absl::StreamFormat("in the store   %s of the %s that it may take\n",
                                                HumanBytes(counts.stored_bytes), HumanBytes(room))
                          << absl::StreamFormat("time           %s\n", time) << std::flush;
    return absl::OkStatus();
  }

  static constexpr size_t kMaxKnownKeys = 1000;  // what one Stat takes

  const PrecomputeFlags& flags_;
  CommandContext& context_;
  std::optional<CallGate> gate_;
  std::optional<Client> client_;
  v1::PutChunksRequest put_;        // without chunks
  v1::SplitDocumentRequest split_;  // without text
  std::unique_ptr<ChunkFile> output_;
  std::optional<CorpusProgress> progress_;
  std::vector<absl::Status> bad_before_start_;  // folders that cannot be looked into
  int64_t num_bad_ = 0;
  std::vector<std::string> known_keys_;        // some of those that are stored
  std::unordered_set<std::string> seen_keys_;  // used within updates of progress_, and after it
  std::optional<StoredCheck> at_end_;
};

absl::Status Run(const PrecomputeFlags& flags, CommandContext& context) {
  return Precompute(flags, context).Run();
}

}  // namespace

void AddPrecomputeCommand(CLI::App& root, CommandContext& context) {
  const auto [command, flags] = AddCommand<PrecomputeFlags>(
      root, context, "precompute", "Split documents (.txt, .md, .jsonl) into chunks and store the KV of each",
      kPrecomputeExamples, Run);
  // Chunks only pass through memory on their way to the disk; nobody asks for them here.
  flags.connection.engine_options.chunk_store_bytes = int64_t{1} << 30;
  AddConnectionFlags(command, InProcess::kAllowed, flags.connection);
  const google::protobuf::Descriptor& put = *v1::PutChunksRequest::descriptor();
  AddCallerFlags(command, put, flags.put_fields, flags.caller);
  command.add_option("paths", flags.paths, "Files, and folders with everything in them; links are followed")
      ->required();
  flags.split_fields.Add(command, *v1::SplitDocumentRequest::descriptor(), "Options", kSplitFlags);
  command.add_option("--jsonl-field", flags.text_field, "Field of a JSON line that has the text")
      ->capture_default_str()
      ->type_name("NAME");
  command.add_option("--jsonl-id", flags.id_field, "Field of a JSON line that has the id, if there is one")
      ->capture_default_str()
      ->type_name("NAME");
  AddAnchorFlags(command, put, flags.put_fields);
  CLI::Option* isolated = command.get_option("--isolated");
  command
      .add_option("--system-file", flags.system_file,
                  absl::StrCat("The system text from a file; ", kFlagTextHelp))
      ->type_name("FILE")
      ->excludes("--system")
      ->excludes(isolated);
  command
      .add_option("--lead-in-file", flags.lead_in_file,
                  absl::StrCat("The text before the chunks from a file; ", kFlagTextHelp))
      ->type_name("FILE")
      ->excludes("--lead-in")
      ->excludes(isolated);
  flags.put_fields.Add(command, put, "Options", kPinFlags);
  command
      .add_option(
          "--output", flags.output,
          "Write every chunk's text, key and place here, one JSON object per line, once all is done; - for "
          "standard output, as they come")
      ->type_name("FILE");
  command.add_option("--in-flight", flags.in_flight, "Batches of chunks to store at the same time")
      ->capture_default_str()
      ->check(WholeNumber("--in-flight", 1, 64))
      ->type_name("N");
  command.add_flag("--dry-run", flags.dry_run,
                   "Only count different chunks, tokens and bytes in the store, and predict the time");
  command.add_flag("--strict", flags.strict,
                   "Stop at the first input that cannot be used; default: name and skip it");
  command.add_flag("--json", flags.json, "The summary as a JSON object");
}

}  // namespace kvblend::server::cli
