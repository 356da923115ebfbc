#include "engine/kv/page_pool.h"

#include <algorithm>
#include <cassert>
#include <cstddef>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace kvblend::kv {
namespace {

constexpr int64_t kAlignment = 64;  // bytes; a layer's K and its V are aligned as by Backend::Allocate

absl::Status CheckOption(const char* name, int32_t value, int32_t max) {
  if (value >= 1 && value <= max) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("page pool: ", name, " is ", value, "; allowed: 1 to ", max));
}

absl::Status Validate(const PagePool::Options& options) {
  // Far above any model, and small enough that a page's bytes (< 2^58) can't overflow.
  if (absl::Status s = CheckOption("num_layers", options.num_layers, 1 << 16); !s.ok()) return s;
  if (absl::Status s = CheckOption("num_kv_heads", options.num_kv_heads, 1 << 14); !s.ok()) return s;
  if (absl::Status s = CheckOption("head_dim", options.head_dim, 1 << 14); !s.ok()) return s;
  if (absl::Status s = CheckOption("page_size", options.page_size, 1024); !s.ok()) return s;
  if (!options.windows.empty() && options.windows.size() != static_cast<size_t>(options.num_layers)) {
    return absl::InvalidArgumentError(absl::StrCat("page pool: there are ", options.windows.size(),
                                                   " windows; allowed: one for each of ", options.num_layers,
                                                   " layers, or none"));
  }
  return CheckOption("num_pages", options.num_pages, INT32_MAX);
}

/// K (or V) of one page in one layer: its elements, and the steps of int8 ones.
int64_t ElementPageBytes(const PagePool::Options& options) {
  return int64_t{options.num_kv_heads} * options.page_size * options.head_dim *
         kernels::SizeOf(options.dtype);
}
int64_t StepPageBytes(const PagePool::Options& options) {
  if (options.dtype != kernels::DataType::kInt8) return 0;
  return int64_t{options.num_kv_heads} * options.page_size *
         kernels::KvPagesView::StepsPerHead(options.head_dim) * static_cast<int64_t>(sizeof(uint16_t));
}
int64_t SectionPageBytes(const PagePool::Options& options) {
  return ElementPageBytes(options) + StepPageBytes(options);
}

}  // namespace

// --- PageList

PageList::PageList(PageList&& other) noexcept
    : pool_(std::exchange(other.pool_, nullptr)),
      pages_(std::exchange(other.pages_, {})),
      use_(other.use_),
      num_dropped_(std::exchange(other.num_dropped_, 0)),
      damaged_(std::exchange(other.damaged_, false)) {}

PageList& PageList::operator=(PageList&& other) noexcept {
  PageList taken(std::move(other));  // releases this list's pages at the end
  std::swap(pool_, taken.pool_);
  std::swap(pages_, taken.pages_);
  std::swap(use_, taken.use_);
  std::swap(num_dropped_, taken.num_dropped_);
  std::swap(damaged_, taken.damaged_);
  return *this;
}

PageList::~PageList() {
  if (!held().empty()) pool_->Release(held(), use_, damaged_);
}

void PageList::DropFirst(int32_t num_pages) {
  assert(num_pages == 0 || num_pages < size());
  if (num_pages <= num_dropped_) return;
  pool_->Release(held().first(num_pages - num_dropped_), use_, damaged_);
  num_dropped_ = num_pages;
  std::fill_n(pages_.begin(), num_pages, pages_[num_pages]);
}

void PageList::TakeBack(PageList other) {
  assert(other.size() == num_dropped_);
  std::copy(other.pages_.begin(), other.pages_.end(), pages_.begin());
  other.pages_.clear();
  num_dropped_ = 0;
}

PageList PageList::Share(int32_t num_pages, PageUse use) const {
  assert(num_pages >= 0 && num_pages <= size() && num_dropped_ == 0);
  const absl::Span<const int32_t> pages = absl::MakeConstSpan(pages_).first(num_pages);
  if (!pages.empty()) pool_->Hold(pages, use);
  return {pool_, {pages.begin(), pages.end()}, use};
}

bool PageList::IsShared(int32_t index) const {
  assert(index >= num_dropped_ && index < size());
  return pool_->IsShared(pages_[index]);
}

IdlePages PageList::idle() const { return held().empty() ? IdlePages() : pool_->IdleOf(held()); }

int64_t PageList::NumHeldFor(PageUse use, int32_t num_lists, int32_t num_pages) const {
  if (num_pages <= num_dropped_) return 0;
  return pool_->NumHeldFor(held().first(num_pages - num_dropped_), use, num_lists);
}

void PageList::Replace(int32_t index, PageList other) {
  assert(index >= num_dropped_ && index < size() && other.size() == 1 && other.pool_ == pool_ &&
         other.use_ == use_);
  std::swap(pages_[index], other.pages_[0]);
}

void PageList::SetUse(PageUse use) {
  if (use != use_ && !held().empty()) pool_->ChangeUse(held(), use_, use);
  use_ = use;
}

void PageList::Append(PageList other) {
  assert(pages_.empty() || other.pages_.empty() || (pool_ == other.pool_ && use_ == other.use_));
  if (pages_.empty()) {
    *this = std::move(other);
    return;
  }
  pages_.insert(pages_.end(), other.pages_.begin(), other.pages_.end());
  damaged_ = damaged_ || other.damaged_;
  other.pages_.clear();
}

void PageList::Truncate(int32_t num_pages) {
  if (num_pages >= size()) return;
  const int32_t first = std::max(num_pages, num_dropped_);
  if (first < size()) pool_->Release(absl::MakeConstSpan(pages_).subspan(first), use_, damaged_);
  pages_.resize(num_pages);
  num_dropped_ = std::min(num_dropped_, num_pages);
}

// --- PagePool

LayerGroups PagePool::GroupsOf(const Options& options) {
  return LayerGroups::Of(options.windows.empty() ? std::vector<int32_t>(options.num_layers)
                                                 : options.windows);
}

int64_t PagePool::PageBytes(const Options& options) {
  return 2 * int64_t{GroupsOf(options).layers_per_group} * SectionPageBytes(options);
}

absl::StatusOr<std::unique_ptr<PagePool>> PagePool::Create(kernels::Backend& backend,
                                                           const Options& options) {
  if (absl::Status s = Validate(options); !s.ok()) return s;
  int64_t section_bytes = 0;
  int64_t slot_bytes = 0;
  if (__builtin_mul_overflow(SectionPageBytes(options), int64_t{options.num_pages}, &section_bytes) ||
      __builtin_add_overflow(section_bytes, kAlignment - 1, &section_bytes) ||
      __builtin_mul_overflow(section_bytes / kAlignment * kAlignment, int64_t{2}, &slot_bytes)) {
    return absl::InvalidArgumentError(absl::StrCat("page pool: ", options.num_pages, " pages of ",
                                                   PageBytes(options),
                                                   " bytes are more than can be addressed"));
  }
  LayerGroups groups = GroupsOf(options);
  std::vector<std::unique_ptr<kernels::Buffer>> slots;
  for (int32_t slot = 0; slot < groups.layers_per_group; ++slot) {
    absl::StatusOr<std::unique_ptr<kernels::Buffer>> buffer = backend.Allocate(slot_bytes);
    if (!buffer.ok()) {
      return absl::Status(buffer.status().code(),
                          absl::StrCat("page pool: ", options.num_pages, " pages of ", PageBytes(options),
                                       " bytes, layer ", slot, ": ", buffer.status().message()));
    }
    slots.push_back(*std::move(buffer));
  }
  absl::StatusOr<std::unique_ptr<kernels::Stream>> stream = backend.CreateStream();
  if (!stream.ok()) return stream.status();
  return std::unique_ptr<PagePool>(new PagePool(backend, *std::move(stream), options, std::move(groups),
                                                slot_bytes / 2, std::move(slots)));
}

PagePool::PagePool(kernels::Backend& backend, std::unique_ptr<kernels::Stream> stream, const Options& options,
                   LayerGroups groups, int64_t section_bytes,
                   std::vector<std::unique_ptr<kernels::Buffer>> slots)
    : backend_(backend),
      stream_(std::move(stream)),
      options_(options),
      groups_(std::move(groups)),
      layout_(backend.best_page_layout(options.dtype, options.page_size, options.head_dim)),
      section_bytes_(section_bytes),
      slots_(std::move(slots)) {
  absl::MutexLock lock(&mutex_);
  free_.Add(0, options.num_pages);
  is_finite_.resize(options.num_pages, false);
  references_.resize(options.num_pages);
}

PagePool::~PagePool() { assert(num_used() == 0 && "a PageList outlives its pool"); }

kernels::KvPagesView PagePool::Layer(int32_t layer) const {
  assert(layer >= 0 && layer < options_.num_layers);
  const LayerGroups::Place place = groups_.layers[static_cast<size_t>(layer)];
  kernels::KvPagesView view = Slot(place.slot);
  view.page_list = place.group;
  return view;
}

kernels::KvPagesView PagePool::Slot(int32_t slot) const {
  const kernels::Buffer& buffer = *slots_[static_cast<size_t>(slot)];
  auto* k = static_cast<std::byte*>(buffer.data());
  std::byte* v = k + section_bytes_;
  const bool int8 = options_.dtype == kernels::DataType::kInt8;
  const int64_t steps = ElementPageBytes(options_) * options_.num_pages;  // behind the elements
  return {.k = k,
          .v = v,
          .k_steps = int8 ? k + steps : nullptr,
          .v_steps = int8 ? v + steps : nullptr,
          .dtype = options_.dtype,
          .layout = layout_,
          .num_pages = options_.num_pages,
          .num_kv_heads = options_.num_kv_heads,
          .page_size = options_.page_size,
          .head_dim = options_.head_dim};
}

absl::StatusOr<PageList> PagePool::Allocate(int64_t num_pages, PageUse use) {
  if (num_pages < 0) {
    return absl::InvalidArgumentError(absl::StrCat("page pool: num_pages is ", num_pages, "; allowed: >= 0"));
  }
  if (const int64_t missing = num_pages - num_free(); missing > 0 && reclaim_ != nullptr) reclaim_(missing);
  PageList list;
  std::vector<int32_t> unfit;
  {
    absl::MutexLock lock(&mutex_);
    if (num_pages > free_.num_pages()) {
      return absl::ResourceExhaustedError(absl::StrCat("page pool: ", num_pages, " pages needed, ",
                                                       free_.num_pages(), " of ", options_.num_pages,
                                                       " free (", options_.page_size, " tokens each)"));
    }
    list = PageList(this, free_.Take(static_cast<int32_t>(num_pages)), use);
    for (const int32_t page : list.page_indices()) {
      AddReferences(page, use, 1);
      if (!is_finite_[page]) unfit.push_back(page);
    }
  }
  if (unfit.empty()) return list;
  if (absl::Status s = WriteZeros(unfit); !s.ok()) return s;
  absl::MutexLock lock(&mutex_);
  for (const int32_t page : unfit) is_finite_[page] = true;
  return list;
}

absl::Status PagePool::ForSectionsOf(int32_t page, VisitSection visit) const {
  const int64_t elements = ElementPageBytes(options_), steps = StepPageBytes(options_);
  for (int32_t slot = 0; slot < groups_.layers_per_group; ++slot) {
    const kernels::KvPagesView view = Slot(slot);
    const auto of_page = [&](void* section, int64_t bytes) {
      return visit(static_cast<std::byte*>(section) + page * bytes, bytes);
    };
    for (void* section : {view.k, view.v}) {
      if (absl::Status s = of_page(section, elements); !s.ok()) return s;
    }
    if (steps == 0) continue;
    for (void* section : {view.k_steps, view.v_steps}) {
      if (absl::Status s = of_page(section, steps); !s.ok()) return s;
    }
  }
  return absl::OkStatus();
}

absl::Status PagePool::WriteZeros(absl::Span<const int32_t> pages) {
  const std::vector<std::byte> zeros(std::max(ElementPageBytes(options_), StepPageBytes(options_)));
  for (const int32_t page : pages) {
    absl::Status written = ForSectionsOf(page, [&](std::byte* data, int64_t bytes) {
      return backend_.CopyFromHost(*stream_, data, zeros.data(), bytes);
    });
    if (!written.ok()) return written;
  }
  return backend_.Synchronize(*stream_);
}

absl::Status PagePool::CopyPage(kernels::Stream& stream, int32_t from, int32_t to) const {
  std::vector<std::byte> host(PageBytes(options_));
  std::byte* next = host.data();
  absl::Status copied = ForSectionsOf(from, [&](std::byte* data, int64_t bytes) {
    return backend_.CopyToHost(stream, std::exchange(next, next + bytes), data, bytes);
  });
  if (copied.ok()) copied = backend_.Synchronize(stream);
  if (!copied.ok()) return copied;
  next = host.data();
  copied = ForSectionsOf(to, [&](std::byte* data, int64_t bytes) {
    return backend_.CopyFromHost(stream, data, std::exchange(next, next + bytes), bytes);
  });
  return copied.ok() ? backend_.Synchronize(stream) : copied;
}

void PagePool::AddReferences(int32_t page, PageUse use, int32_t change) {
  References& references = references_[page];
  Holdings& holdings = holdings_[static_cast<int>(use)];
  int32_t& count = references.by_use[static_cast<int>(use)];
  num_idle_ -= references.is_idle() ? 1 : 0;
  num_shared_ -= references.all() > 1 ? 1 : 0;
  holdings.distinct -= count > 0 ? 1 : 0;
  count += change;
  holdings.held += change;
  holdings.distinct += count > 0 ? 1 : 0;
  num_shared_ += references.all() > 1 ? 1 : 0;
  num_idle_ += references.is_idle() ? 1 : 0;
}

void PagePool::Hold(absl::Span<const int32_t> pages, PageUse use) {
  absl::MutexLock lock(&mutex_);
  for (const int32_t page : pages) AddReferences(page, use, 1);
}

void PagePool::ChangeUse(absl::Span<const int32_t> pages, PageUse from, PageUse to) {
  absl::MutexLock lock(&mutex_);
  for (const int32_t page : pages) {
    AddReferences(page, to, 1);
    AddReferences(page, from, -1);
  }
}

bool PagePool::IsShared(int32_t page) const {
  absl::MutexLock lock(&mutex_);
  return references_[page].all() > 1;
}

IdlePages PagePool::IdleOf(absl::Span<const int32_t> pages) const {
  absl::MutexLock lock(&mutex_);
  IdlePages idle;
  for (const int32_t page : pages) {
    if (!references_[page].is_idle()) continue;
    ++idle.all;
    idle.alone += references_[page].all() == 1 ? 1 : 0;
  }
  return idle;
}

int64_t PagePool::NumHeldFor(absl::Span<const int32_t> pages, PageUse use, int32_t num_lists) const {
  absl::MutexLock lock(&mutex_);
  int64_t held = 0;
  for (const int32_t page : pages) {
    held += references_[page].by_use[static_cast<int>(use)] >= num_lists ? 1 : 0;
  }
  return held;
}

void PagePool::Release(absl::Span<const int32_t> pages, PageUse use, bool damaged) {
  absl::MutexLock lock(&mutex_);
  const auto is_free = [&](int32_t page) { return references_[page].all() == 0; };
  for (const int32_t page : pages) {
    AddReferences(page, use, -1);
    if (damaged) is_finite_[page] = false;
  }
  for (size_t begin = 0, end = 0; begin < pages.size(); begin = end) {
    end = begin + 1;
    if (!is_free(pages[begin])) continue;
    while (end < pages.size() && pages[end] == pages[end - 1] + 1 && is_free(pages[end])) ++end;
    free_.Add(pages[begin], static_cast<int32_t>(end - begin));
  }
}

int32_t PagePool::num_free() const {
  absl::MutexLock lock(&mutex_);
  return free_.num_pages();
}

int32_t PagePool::num_idle() const {
  absl::MutexLock lock(&mutex_);
  return num_idle_;
}

int32_t PagePool::num_shared() const {
  absl::MutexLock lock(&mutex_);
  return num_shared_;
}

PagePool::Holdings PagePool::HeldFor(PageUse use) const {
  absl::MutexLock lock(&mutex_);
  return holdings_[static_cast<int>(use)];
}

}  // namespace kvblend::kv
