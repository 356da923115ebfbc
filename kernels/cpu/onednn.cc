#include "kernels/cpu/onednn.h"

#include <unordered_map>

#include "absl/strings/str_cat.h"
#include "kernels/cpu/scratch.h"

// libgomp's own functions; <omp.h> is not there for every compiler.
extern "C" void omp_set_num_threads(int);
extern "C" int omp_get_max_threads(void);

namespace kvblend::kernels {
namespace {

using Tag = dnnl::memory::format_tag;

dnnl::memory::data_type ToOneDnn(DataType dtype) {
  return dtype == DataType::kBF16 ? dnnl::memory::data_type::bf16 : dnnl::memory::data_type::f32;
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

bool OneDnnSupportsBF16() { return HasIsa(dnnl_cpu_isa_avx512_core); }
bool OneDnnHasFastBF16() { return HasIsa(dnnl_cpu_isa_avx512_core_bf16); }

std::string OneDnnDescription() {
  const dnnl_version_t* version = dnnl::version();
  const char* isa = HasIsa(dnnl_cpu_isa_avx512_core_amx)    ? "avx512_core_amx"
                    : HasIsa(dnnl_cpu_isa_avx512_core_bf16) ? "avx512_core_bf16"
                    : HasIsa(dnnl_cpu_isa_avx512_core)      ? "avx512_core"
                    : HasIsa(dnnl_cpu_isa_avx2)             ? "avx2"
                                                            : "sse41";
  return absl::StrCat(version->major, ".", version->minor, ".", version->patch, ", ", isa);
}

bool PackedInBlocks() { return HasIsa(dnnl_cpu_isa_avx512_core); }

int64_t PackedColumns(DataType dtype, int64_t k) {
  const int64_t multiple = dtype == DataType::kBF16 ? 32 : 16;
  return (k + multiple - 1) / multiple * multiple;
}

dnnl::memory::desc PackedGemmDesc(DataType dtype, int64_t k, int64_t n) {
  const Tag tag = !PackedInBlocks() ? Tag::ab : dtype == DataType::kBF16 ? Tag::BA16a64b2a : Tag::BA16a64b;
  return {{k, n}, ToOneDnn(dtype), tag};
}

absl::StatusOr<std::shared_ptr<const Gemm>> Gemm::Create(const GemmSpec& spec) {
  try {
    std::shared_ptr<Gemm> gemm(new Gemm());
    const dnnl::memory::desc a({spec.m, spec.k}, ToOneDnn(spec.dtype), Tag::ab);
    const dnnl::memory::desc c({spec.m, spec.n}, ToOneDnn(DataType::kF32), Tag::ab);
    const auto b = spec.layout == GemmLayout::kPacked
                       ? PackedGemmDesc(spec.dtype, spec.k, spec.n)
                       : dnnl::memory::desc({spec.k, spec.n}, ToOneDnn(spec.dtype),
                                            spec.layout == GemmLayout::kRowMajor ? Tag::ab : Tag::ba);
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
    gemm->b_ = b;
    gemm->c_ = c;
    gemm->scratchpad_ = description.scratchpad_desc();
    return gemm;
  } catch (const dnnl::error& error) {
    return FromError(error, absl::StrCat("no product [", spec.m, ", ", spec.k, "] x [", spec.k, ", ", spec.n,
                                         "] of ", std::string(Name(spec.dtype))));
  }
}

absl::Status Gemm::Run(const void* a, const void* b, float* c) const {
  try {
    // Reading through a non-const handle: oneDNN has no const memory.
    return Run(a, dnnl::memory(b_, OneDnnEngine(), const_cast<void*>(b)), c);
  } catch (const dnnl::error& error) {
    return FromError(error, "memory");
  }
}

absl::Status Gemm::Run(const void* a, const dnnl::memory& b, float* c) const {
  try {
    const dnnl::engine& engine = OneDnnEngine();
    void* scratch = ThreadScratch(ScratchSlot::kOneDnn, scratchpad_.get_size());
    primitive_.execute(ThreadStream(), {{DNNL_ARG_SRC, dnnl::memory(a_, engine, const_cast<void*>(a))},
                                        {DNNL_ARG_WEIGHTS, b},
                                        {DNNL_ARG_DST, dnnl::memory(c_, engine, c)},
                                        {DNNL_ARG_SCRATCHPAD, dnnl::memory(scratchpad_, engine, scratch)}});
    return absl::OkStatus();
  } catch (const dnnl::error& error) {
    return FromError(error, "matrix product");
  }
}

absl::StatusOr<std::shared_ptr<const Gemm>> GemmCache::Get(const GemmSpec& spec) {
  {
    absl::ReaderMutexLock lock(&mutex_);
    if (auto it = entries_.find(spec); it != entries_.end()) return it->second;
  }
  auto gemm = Gemm::Create(spec);  // outside the lock: others keep running; at worst one shape is made twice
  if (!gemm.ok()) return gemm.status();
  absl::MutexLock lock(&mutex_);
  if (entries_.size() >= kMaxEntries) entries_.clear();
  return entries_.emplace(spec, *gemm).first->second;
}

}  // namespace kvblend::kernels
