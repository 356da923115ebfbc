#include "kernels/cpu/machine/onednn.h"

#include <atomic>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "kernels/cpu/machine/instruction_set.h"
#include "kernels/cpu/machine/scratch.h"

// libgomp's own functions; <omp.h> is not there for every compiler.
extern "C" void omp_set_num_threads(int);
extern "C" int omp_get_max_threads(void);

namespace kvblend::kernels {
namespace {

using Tag = dnnl::memory::format_tag;

using OneDnnType = dnnl::memory::data_type;

// How oneDNN calls a type of A and B, and the layout of B.
struct TypeNames {
  OneDnnType dtype;
  Tag packed;
  int64_t inner;  // B's rows in a block
};
TypeNames NamesOf(DataType dtype) {
  return dtype == DataType::kBF16 ? TypeNames{OneDnnType::bf16, Tag::BA16a64b2a, 32}
                                  : TypeNames{OneDnnType::f32, Tag::BA16a64b, 16};
}

absl::Status FromError(const dnnl::error& error, const std::string& what) {
  const std::string message = absl::StrCat("oneDNN: ", what, ": ", error.what());
  return error.status == dnnl_out_of_memory ? absl::ResourceExhaustedError(message)
                                            : absl::InternalError(message);
}

dnnl::stream& ThreadStream() {
  thread_local dnnl::stream stream(OneDnnEngine());
  return stream;
}

bool HasIsa(int isa) { return (static_cast<int>(dnnl::get_effective_cpu_isa()) & isa) == isa; }

// Whether vectors multiply pairs of 16-bit codes faster than bf16.
bool VectorsPreferCodes() {
#if defined(__x86_64__)
  return __builtin_cpu_is("intel") && MultipliesAndAddsPairs();
#else
  return false;
#endif
}

}  // namespace

void UseOneOpenMpThread() { omp_set_num_threads(1); }

OneDnnThreadScope::OneDnnThreadScope() : previous_(omp_get_max_threads()) {
  if (previous_ != 1) omp_set_num_threads(1);
}
OneDnnThreadScope::~OneDnnThreadScope() {
  if (previous_ != 1) omp_set_num_threads(previous_);
}

const dnnl::engine& OneDnnEngine() {
  // Never destroyed: streams in thread-local storage may outlive static objects.
  static const dnnl::engine* const engine = new dnnl::engine(dnnl::engine::kind::cpu, 0);
  return *engine;
}

absl::Mutex& OneDnnCreationMutex() {
  static auto* const mutex = new absl::Mutex();
  return *mutex;
}

bool OneDnnSupportsBF16() { return HasIsa(dnnl_cpu_isa_avx512_core); }
bool OneDnnHasBF16Instructions() { return HasIsa(dnnl_cpu_isa_avx512_core_bf16); }
bool OneDnnHasAmx() { return HasIsa(dnnl_cpu_isa_avx512_core_amx); }
bool OneDnnHasFastBF16() {
  if (OneDnnHasAmx()) return true;
  return OneDnnHasBF16Instructions() && !VectorsPreferCodes();
}

std::string OneDnnDescription() {
  const dnnl_version_t* version = dnnl::version();
  const char* isa = OneDnnHasAmx()                          ? "avx512_core_amx"
                    : HasIsa(dnnl_cpu_isa_avx512_core_bf16) ? "avx512_core_bf16"
                    : HasIsa(dnnl_cpu_isa_avx512_core)      ? "avx512_core"
                    : HasIsa(dnnl_cpu_isa_avx2)             ? "avx2"
                                                            : "sse41";
  return absl::StrCat(version->major, ".", version->minor, ".", version->patch, ", ", isa);
}

bool OneDnnReadsBlocks() { return HasIsa(dnnl_cpu_isa_avx512_core); }

int64_t PackedColumns(DataType dtype, int64_t k) { return RoundUp(k, NamesOf(dtype).inner); }

dnnl::memory::desc PackedGemmDesc(DataType dtype, int64_t k, int64_t n) {
  const TypeNames names = NamesOf(dtype);
  return {{k, n}, names.dtype, names.packed};
}

absl::StatusOr<std::shared_ptr<const Gemm>> Gemm::Create(const GemmSpec& spec) {
  try {
    std::shared_ptr<Gemm> gemm(new Gemm());
    const TypeNames names = NamesOf(spec.dtype);
    const dnnl::memory::desc a({spec.m, spec.k}, names.dtype, Tag::ab);
    const dnnl::memory::desc c({spec.m, spec.n}, OneDnnType::f32, Tag::ab);
    const dnnl::memory::desc b = PackedGemmDesc(spec.dtype, spec.k, spec.n);
    dnnl::primitive_attr attributes;
    attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
    if (spec.accumulate) {
      dnnl::post_ops sum;
      sum.append_sum(1.0f);
      attributes.set_post_ops(sum);
    }
    const dnnl::matmul::primitive_desc description(dnnl::matmul::desc(a, b, c), attributes, OneDnnEngine());
    gemm->primitive_ = dnnl::matmul(description);
    gemm->a_ = a;
    gemm->c_ = c;
    gemm->scratchpad_ = description.scratchpad_desc();
    return gemm;
  } catch (const dnnl::error& error) {
    return FromError(error, absl::StrCat("no product [", spec.m, ", ", spec.k, "] x [", spec.k, ", ", spec.n,
                                         "] of ", std::string(kernels::Name(spec.dtype))));
  }
}

// oneDNN's memory objects, which hold no more than a pointer but cost several allocations to make: kept per
// thread.
struct Gemm::Handles {
  dnnl::memory a, c, scratchpad;
};

Gemm::Gemm()
    : id_([] {
        static std::atomic<uint64_t> next{0};
        return next.fetch_add(1, std::memory_order_relaxed);
      }()) {}

Gemm::Handles& Gemm::ThreadHandles() const {
  constexpr size_t kMaxHandles = 256;
  thread_local absl::flat_hash_map<uint64_t, std::unique_ptr<Handles>> handles;
  if (const auto it = handles.find(id_); it != handles.end()) return *it->second;
  if (handles.size() >= kMaxHandles) handles.clear();
  const dnnl::engine& engine = OneDnnEngine();
  const auto empty = [&](const dnnl::memory::desc& desc) { return dnnl::memory(desc, engine, nullptr); };
  return *handles.emplace(id_, std::make_unique<Handles>(Handles{empty(a_), empty(c_), empty(scratchpad_)}))
              .first->second;
}

absl::Status Gemm::Execute(const Handles& handles, const dnnl::memory& b) const {
  const dnnl_exec_arg_t args[] = {{DNNL_ARG_SRC, handles.a.get()},
                                  {DNNL_ARG_WEIGHTS, b.get()},
                                  {DNNL_ARG_DST, handles.c.get()},
                                  {DNNL_ARG_SCRATCHPAD, handles.scratchpad.get()}};
  const dnnl_status_t status =
      dnnl_primitive_execute(primitive_.get(), ThreadStream().get(), static_cast<int>(std::size(args)), args);
  if (status == dnnl_success) return absl::OkStatus();
  return absl::InternalError(
      absl::StrCat("oneDNN: matrix product failed with status ", static_cast<int>(status)));
}

absl::Status Gemm::Run(const void* a, const dnnl::memory& b, void* c) const {
  try {
    Handles& handles = ThreadHandles();
    handles.a.set_data_handle(const_cast<void*>(a));
    handles.c.set_data_handle(c);
    handles.scratchpad.set_data_handle(ThreadScratch(ScratchSlot::kOneDnn, scratchpad_.get_size()));
    return Execute(handles, b);
  } catch (const dnnl::error& error) {
    return FromError(error, "memory");
  }
}

absl::StatusOr<std::shared_ptr<const Gemm>> GemmCache::Get(const GemmSpec& spec) {
  const auto find = [&]() -> std::shared_ptr<const Gemm> {
    absl::ReaderMutexLock lock(&mutex_);
    const auto it = entries_.find(spec);
    return it == entries_.end() ? nullptr : it->second;
  };
  if (auto gemm = find()) return gemm;
  absl::MutexLock creation_lock(&OneDnnCreationMutex());
  if (auto gemm = find()) return gemm;  // made by another thread in the meantime
  auto gemm = Gemm::Create(spec);
  if (!gemm.ok()) return gemm.status();
  absl::MutexLock lock(&mutex_);
  if (entries_.size() >= kMaxEntries) entries_.clear();
  entries_.emplace(spec, *gemm);
  return *std::move(gemm);
}

}  // namespace kvblend::kernels
