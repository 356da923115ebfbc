#include "server/cli/in_process_calls.h"

#include <utility>

#include "base/status_macros.h"
#include "server/calls/engine_calls.h"

namespace kvblend::server::cli {
namespace {

/// An engine and the slot that it serves from, made before EngineCalls and destroyed after it.
struct OwnedEngine {
  explicit OwnedEngine(std::unique_ptr<Engine> owned) : engine(std::move(owned)) { slot.Serve(engine.get()); }
  const std::unique_ptr<Engine> engine;
  EngineSlot slot;
};

class InProcessCalls : private OwnedEngine, public EngineCalls {
 public:
  InProcessCalls(std::unique_ptr<Engine> engine, const EngineOptions& options,
                 const Cancellation& cancellation)
      : OwnedEngine(std::move(engine)),
        EngineCalls(&slot, {.engine_options = options, .max_message_bytes = 0}),
        cancellation_(cancellation) {}
  ~InProcessCalls() override {
    // Where stored chunks outlive this process, computing those that answers have left is part of its work.
    const bool finish = !engine->Stats().tiers.empty() && !cancellation_.requested();
    engine->Drain(finish ? absl::InfiniteFuture() : absl::InfinitePast()).IgnoreError();
  }

 private:
  const Cancellation& cancellation_;
};

}  // namespace

absl::StatusOr<std::shared_ptr<Calls>> MakeInProcessCalls(const EngineOptions& options,
                                                          const Cancellation& cancellation,
                                                          const Engine::LoadObserver& on_load) {
  // It would leave other servers moments of a server that is gone when they read them.
  EngineOptions alone = options;
  alone.share_correction = false;
  KVBLEND_ASSIGN_OR_RETURN(std::unique_ptr<Engine> engine, Engine::Create(alone, on_load));
  return std::make_shared<InProcessCalls>(std::move(engine), alone, cancellation);
}

}  // namespace kvblend::server::cli
