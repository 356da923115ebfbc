#include "engine/serve/correction_learning.h"

#include <sys/resource.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "engine/kv/correction_file.h"
#include "engine/kv/section_rows.h"
#include "engine/store/format/token_hash.h"
#include "spdlog/spdlog.h"

namespace kvblend {
namespace {

constexpr int kKeepBackEvery = 4;  // chunks
constexpr absl::Duration kLastTurn = absl::Seconds(5);
constexpr absl::Duration kLastFits = absl::Seconds(5);

kv::LearnerOptions LearnerOptionsOf(const ModelRuntime& runtime, int64_t max_bytes) {
  const store::KvFormat& format = runtime.key_space.format;
  const auto& given = runtime.given_correction;
  return {.model_fingerprint = runtime.key_space.model_fingerprint,
          .anchoring = given.has_value() ? given->correction.anchoring : Anchoring::kAnchored,
          .encoding = static_cast<uint32_t>(format.encoding),
          .num_layers = format.num_layers,
          .num_kv_heads = format.num_kv_heads,
          .head_dim = format.head_dim,
          .max_bytes = max_bytes};
}

double PercentOf(const std::vector<double>& shares) {
  return 100 * std::accumulate(shares.begin(), shares.end(), 0.0) / static_cast<double>(shares.size());
}

/// Null, and the log says so: it can't be loaded.
std::shared_ptr<const kv::LoadedCorrection> LoadLearned(const kv::LearnedCorrection& correction,
                                                        kernels::Backend& backend) {
  const std::string version = kv::CorrectionVersion(kv::EncodeCorrection(correction));
  auto loaded = kv::LoadedCorrection::Load(correction, version, backend);
  if (loaded.ok()) return *std::move(loaded);
  spdlog::warn("a learned correction is not applied: {}", std::string(loaded.status().message()));
  return nullptr;
}

/// What a correction leaves of the deviations.
std::vector<double> Corrected(std::vector<double> deviations, const std::vector<double>& shares) {
  for (size_t layer = 0; layer < deviations.size(); ++layer) deviations[layer] *= shares[layer];
  return deviations;
}

}  // namespace

CorrectionLearning::CorrectionLearning(ModelRuntime& runtime, const Options& options)
    : runtime_(runtime),
      options_(options),
      learner_options_(LearnerOptionsOf(runtime, options.max_bytes)),
      budget_(std::make_shared<blend::FreshRowBudget>(options.waiting_bytes)),
      learner_(learner_options_),
      files_(options.folder, learner_options_),
      frozen_(options.frozen) {
  if (!learner_.full()) {
    spdlog::info(
        "correction-learning-bytes is {}: too little for this model's moments, so that a scale and an offset per "
        "channel are learned, without a map",
        options_.max_bytes);
  }
  if (runtime_.given_correction.has_value()) SetInForce(runtime_.given_correction->correction);
  learner_.Reset(GivenVersion());
  Recall();
  if (options_.board != nullptr) OpenSharing();
  LearnIfItCan();
  {
    absl::MutexLock lock(&mutex_);
    if (const auto loaded = runtime_.correction.Get()) stats_.version = loaded->version;
    stats_.learned = !stats_.version.empty() && stats_.version != GivenVersion();
    PublishCounts();
  }
  thread_ = std::thread([this] { Run(); });
}

void CorrectionLearning::LearnIfItCan() {
  const auto& in_force = learner_.in_force();
  absl::MutexLock lock(&mutex_);
  can_learn_ = !in_force.has_value() || learner_.CanJudge(*in_force);
  if (!can_learn_) {
    spdlog::warn(
        "nothing is learned of stored KV: correction-learning-bytes leaves no room to judge the correction "
        "in force");
  }
  const bool learns = can_learn_ && !frozen_;
  stats_.learning = learns ? LearningState::kOn : LearningState::kFrozen;
  budget_->Open(learns);
}

CorrectionLearning::~CorrectionLearning() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  thread_.join();
}

std::string CorrectionLearning::GivenVersion() const {
  return runtime_.given_correction.has_value() ? runtime_.given_correction->version : "";
}

void CorrectionLearning::SetInForce(std::optional<kv::LearnedCorrection> correction) {
  learner_.SetInForce(std::move(correction));
}

void CorrectionLearning::Recall() {
  LearnedFiles::Recalled recalled = files_.Recall(GivenVersion(), runtime_.key_space);
  if (recalled.moments.has_value()) {
    learner_.Restore(*std::move(recalled.moments));
    learner_.SetBase(GivenVersion());
  }
  if (!recalled.correction.has_value()) return;
  auto loaded = kv::LoadedCorrection::Load(recalled.correction->correction, recalled.correction->version,
                                           *runtime_.backend);
  if (!loaded.ok()) {
    spdlog::warn("the correction that was learned is not applied: {}",
                 std::string(loaded.status().message()));
    return;
  }
  runtime_.correction = *std::move(loaded);
  SetInForce(std::move(recalled.correction->correction));
}

void CorrectionLearning::OpenSharing() {
  const uint64_t recalled = learner_.state().replica;
  if (recalled == 0) {
    learner_.SetReplica(MomentsSharing::NewReplica());
    // Saves the name before it is used: under another one after a restart, the moments would count twice.
    if (learner_.state().tokens > 0) Save();
  }
  sharing_ = std::make_unique<MomentsSharing>(*options_.board, learner_options_, learner_.state().replica,
                                              /*left_before=*/recalled != 0,
                                              MomentsSharing::Options{.interval = options_.share_interval});
}

absl::Time CorrectionLearning::NextTurn() const {
  return sharing_ != nullptr ? sharing_->next_turn() : absl::InfiniteFuture();
}

void CorrectionLearning::Share() {
  const auto keep_going = [this] { return GoesOn(); };
  const bool learns = keep_going();
  if (!learns || learner_.state().tokens == 0) {
    sharing_->Withdraw();  // also removes what a reset could not
  } else {
    sharing_->Publish(learner_.state(), /*ends=*/false, keep_going);
  }
  if (learns) {
    sharing_->Look();
    if (Due()) Fit();
  }
  sharing_->EndTurn();
}

void CorrectionLearning::Add(std::shared_ptr<const blend::FreshRows> fresh, store::ChunkHandle entry,
                             absl::Span<const int32_t> token_ids) {
  // By the text alone: a chunk fitted in one namespace, or behind one anchor, must not judge elsewhere.
  const bool kept_back = store::HashTokens(token_ids)[0] % kKeepBackEvery == 0;
  if (fresh->weight <= 0) return;
  Chunk chunk{std::move(fresh), kept_back};
  {
    absl::MutexLock lock(&mutex_);
    if (!Wants(*chunk.fresh)) return;
    if (held_bytes_ + entry.size_bytes() <= options_.waiting_bytes) {
      held_bytes_ += entry.size_bytes();
      chunk.entry = std::move(entry);
      queue_.push_back(std::move(chunk));
      return;
    }
  }
  // The thread is behind, or this is a very long chunk: the store must be able to evict it meanwhile.
  chunk.stored = StoredRows(entry, chunk.fresh->rows);
  if (chunk.stored.empty()) return;
  absl::MutexLock lock(&mutex_);
  if (Wants(*chunk.fresh)) queue_.push_back(std::move(chunk));
}

std::vector<float> CorrectionLearning::StoredRows(const store::ChunkHandle& entry,
                                                  const std::vector<int32_t>& rows) const {
  const auto layer_values = static_cast<int64_t>(rows.size()) * learner_options_.channels();
  std::vector<float> stored(learner_options_.num_layers * layer_values);
  for (int32_t layer = 0; layer < learner_options_.num_layers; ++layer) {
    const absl::StatusOr<store::LayerKv> kv = entry.AcquireLayer(layer);
    if (!kv.ok()) return {};
    kv::DecodeRows(kv->k, kv->v, rows, absl::MakeSpan(stored).subspan(layer * layer_values, layer_values));
  }
  return stored;
}

bool CorrectionLearning::HasWork() const {
  if (stopping_ || reset_asked_ || turn_asked_) return true;
  // Chunks may come faster than they are learned from, and whoever waits for an update would wait for ever.
  return updates_ == 0 && (!queue_.empty() || (save_asked_ && dirty_));
}

void CorrectionLearning::Run() {
  // Serving comes first. On Linux this sets the priority of the calling thread alone.
  setpriority(PRIO_PROCESS, 0, 19);
  const std::vector<double> before = learner_.Deviations();
  std::vector<double> shares = learner_.Judge([this] {
    absl::MutexLock lock(&mutex_);
    return !stopping_;
  });
  DropHarm(shares);
  mutex_.Lock();
  stats_.deviation_before = before;
  stats_.deviation_after = Corrected(before, shares);
  while (true) {
    mutex_.AwaitWithTimeout(absl::Condition(this, &CorrectionLearning::HasWork), NextTurn() - SteadyNow());
    if (stopping_) break;
    const bool reset = reset_asked_, turn = !reset && (turn_asked_ || SteadyNow() >= NextTurn());
    std::deque<Chunk> chunk;  // at most one
    if (!reset && !turn && !queue_.empty()) {
      chunk.push_back(std::move(queue_.front()));
      queue_.pop_front();
    }
    const bool save = !reset && !turn && chunk.empty() && dirty_;
    busy_ = true;
    if (turn) turn_asked_ = false;  // cleared now: a turn asked for from here on is another one
    learns_a_chunk_ = !chunk.empty();
    mutex_.Unlock();
    if (reset) Forget();
    if (turn) Share();
    if (save) Save();
    int64_t held_bytes = 0;
    if (!chunk.empty()) {
      held_bytes = chunk.front().held_bytes();
      Learn(chunk.front());
      chunk.clear();
    }
    mutex_.Lock();
    held_bytes_ -= held_bytes;
    if (reset) reset_asked_ = false;
    busy_ = learns_a_chunk_ = false;
    PublishCounts();
  }
  const bool dirty = dirty_, tell = sharing_ != nullptr && stats_.learning == LearningState::kOn;
  mutex_.Unlock();
  if (dirty) Save();
  // The moments are of use to others when this process is gone, or to itself later where it has no disk.
  const absl::Time end = SteadyNow() + kLastTurn;
  if (tell) sharing_->Publish(learner_.state(), /*ends=*/true, [end] { return SteadyNow() < end; });
}

void CorrectionLearning::Learn(Chunk& chunk) {
  if (chunk.entry.has_value()) chunk.stored = StoredRows(*chunk.entry, chunk.fresh->rows);
  if (chunk.stored.empty()) return;
  std::vector<float> weights = chunk.fresh->row_weights;
  for (float& weight : weights) weight *= static_cast<float>(chunk.fresh->weight);
  learner_.Add({.tokens = chunk.fresh->rows,
                .weights = weights,
                .kept_back = chunk.kept_back,
                .stored = chunk.stored,
                .fresh = chunk.fresh->values()});
  {
    absl::MutexLock lock(&mutex_);
    dirty_ = files_.kept();
    PublishCounts();
  }
  if (!Due()) return;
  if (sharing_ != nullptr) sharing_->Look();
  Fit();
}

void CorrectionLearning::DropHarm(std::vector<double>& shares) {
  const auto harms = [](double share) { return share > 1; };
  const auto harmful = std::count_if(shares.begin(), shares.end(), harms);
  if (harmful == 0) return;
  const double worst = 100 * *std::max_element(shares.begin(), shares.end());
  const std::string found = absl::StrFormat(
      "in %d of %d layers the correction in force makes the deviation of chunks kept back larger (up to %.1f%% of it)",
      harmful, shares.size(), worst);
  if (!GoesOn()) {
    spdlog::warn("{}; it stays in force, since nothing is learned now", found);
    return;
  }
  kv::LearnedCorrection correction = *learner_.in_force();
  for (size_t layer = 0; layer < shares.size(); ++layer) {
    if (harms(shares[layer])) correction.layers[layer] = {};
  }
  correction.learned = kv::LearnedFrom{.encoding = learner_options_.encoding, .base = learner_.state().base};
  const auto loaded = LoadLearned(correction, *runtime_.backend);
  if (loaded == nullptr) return;
  {
    absl::MutexLock lock(&mutex_);
    if (!MayFit()) return;
    stats_.version = loaded->version;
    stats_.learned = true;
    runtime_.correction = loaded;
  }
  std::replace_if(shares.begin(), shares.end(), harms, 1.0);
  spdlog::warn("{}; these layers are not corrected any more: version {} is in force", found, loaded->version);
  files_.SaveCorrection(correction);
  SetInForce(std::move(correction));
}

bool CorrectionLearning::GoesOn() const {
  absl::MutexLock lock(&mutex_);
  return MayFit();
}

bool CorrectionLearning::Due() const {
  return learner_.due(sharing_ != nullptr ? sharing_->seen() : kv::OtherPairs::Seen{});
}

bool CorrectionLearning::FitGoesOn() const {
  const absl::Time now = options_.now();
  absl::MutexLock lock(&mutex_);
  return MayFit() && now < fits_end_;
}

void CorrectionLearning::Fit() {
  const auto keep_going = [this] { return FitGoesOn(); };
  std::optional<kv::CorrectionLearner::Verdict> verdict;
  // A replica that can't be read is left out, and the fit begins anew if there is enough without it.
  while (!verdict.has_value()) {
    if (!keep_going() || !Due()) return;
    verdict = learner_.Fit(keep_going, sharing_.get());
  }
  std::shared_ptr<const kv::LoadedCorrection> loaded;
  if (verdict->better) {
    loaded = LoadLearned(verdict->correction, *runtime_.backend);
  }
  {
    absl::MutexLock lock(&mutex_);
    if (!MayFit()) return;
    ++stats_.fits;
    stats_.deviation_before = verdict->deviations;
    stats_.deviation_after =
        Corrected(verdict->deviations, loaded != nullptr ? verdict->after : verdict->before);
    if (loaded != nullptr) {
      ++stats_.fits_applied;
      stats_.version = loaded->version;
      stats_.learned = true;
      runtime_.correction = loaded;
    }
  }
  learner_.NoteFit(*verdict);
  if (sharing_ != nullptr) sharing_->NoteFit();
  spdlog::info(
      "of the squared deviation of {} chunks kept back the correction in force left {:.1f}%, a fit of {} "
      "chunks leaves {:.1f}%{}",
      verdict->kept_back_chunks, PercentOf(verdict->before), verdict->fitted_chunks,
      PercentOf(verdict->after),
      loaded != nullptr ? absl::StrCat(": version ", loaded->version, " is in force") : "");
  Save();
  if (loaded == nullptr) return;
  files_.SaveCorrection(verdict->correction);
  SetInForce(std::move(verdict->correction));
}

void CorrectionLearning::Forget() {
  const auto& given = runtime_.given_correction;
  std::shared_ptr<const kv::LoadedCorrection> loaded;
  if (given.has_value()) {
    auto loading = kv::LoadedCorrection::Load(given->correction, given->version, *runtime_.backend);
    if (loading.ok()) {
      loaded = *std::move(loading);
    } else {
      spdlog::warn("the correction that was given is not applied: {}",
                   std::string(loading.status().message()));
    }
  }
  learner_.Reset(GivenVersion());
  if (sharing_ != nullptr) {
    sharing_->Withdraw();
    sharing_->Forget();
  }
  SetInForce(loaded != nullptr ? std::optional(given->correction) : std::nullopt);
  files_.Remove();
  LearnIfItCan();
  absl::MutexLock lock(&mutex_);
  runtime_.correction = loaded;
  stats_.version = loaded != nullptr ? loaded->version : "";
  stats_.learned = false;
  stats_.deviation_before.clear();
  stats_.deviation_after.clear();
  dirty_ = false;
}

void CorrectionLearning::Save() {
  files_.SaveMoments(learner_.state());
  absl::MutexLock lock(&mutex_);
  dirty_ = false;  // after an error too: the next chunk tries again
}

void CorrectionLearning::PublishCounts() {
  const kv::LearnerState& state = learner_.state();
  stats_.tokens = state.tokens;
  stats_.fitted_chunks = state.fitted_chunks;
  stats_.kept_back_chunks = state.kept_back_chunks;
}

absl::StatusOr<CorrectionStats> CorrectionLearning::Update(CorrectionAction action) {
  std::deque<Chunk> dropped;
  {
    absl::MutexLock lock(&mutex_);
    if (action == CorrectionAction::kLearn && !can_learn_) {
      return absl::FailedPreconditionError(
          "correction-learning-bytes leaves no room to judge the correction in force: nothing can be learned "
          "before a reset");
    }
    if (action == CorrectionAction::kFreeze || action == CorrectionAction::kReset) {
      dropped.swap(queue_);
      for (const Chunk& chunk : dropped) held_bytes_ -= chunk.held_bytes();
    }
    if (action == CorrectionAction::kFreeze || action == CorrectionAction::kLearn) {
      const bool learns = action == CorrectionAction::kLearn;
      frozen_ = !learns;
      stats_.learning = learns ? LearningState::kOn : LearningState::kFrozen;
      budget_->Open(learns);
    }
    // After Open: what is taken from here on is of the new one.
    if (action == CorrectionAction::kFreeze || action == CorrectionAction::kReset) budget_->EndGeneration();
    reset_asked_ = reset_asked_ || action == CorrectionAction::kReset;
    turn_asked_ = turn_asked_ || (sharing_ != nullptr && action == CorrectionAction::kFreeze);
    if (action == CorrectionAction::kFreeze || action == CorrectionAction::kReset) {
      ++updates_;
      mutex_.Await(absl::Condition(this, &CorrectionLearning::Idle));
      --updates_;
    }
  }
  return Stats();
}

CorrectionStats CorrectionLearning::Stats() const {
  absl::MutexLock lock(&mutex_);
  CorrectionStats stats = stats_;
  stats.waiting_chunks = static_cast<int64_t>(queue_.size()) + (learns_a_chunk_ ? 1 : 0);
  if (sharing_ != nullptr) {
    const MomentsSharing::Stats sharing = sharing_->stats();
    stats.shared = true;
    stats.replicas_found = sharing.replicas_found;
    stats.replicas_merged = sharing.replicas_merged;
    stats.moments_published = sharing.published;
    stats.moments_refused = sharing.refused;
    stats.sharing_failures = sharing.failures;
  }
  return stats;
}

absl::Status CorrectionLearning::Flush(absl::Time deadline) {
  absl::MutexLock lock(&mutex_);
  save_asked_ = true;
  fits_end_ = options_.now() + kLastFits;
  const bool settled =
      mutex_.AwaitWithDeadline(absl::Condition(this, &CorrectionLearning::Settled), deadline);
  save_asked_ = false;
  fits_end_ = absl::InfiniteFuture();
  if (settled) return absl::OkStatus();
  return absl::DeadlineExceededError("what was kept for learning is not all learned from");
}

}  // namespace kvblend
