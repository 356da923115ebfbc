// Namespaces that are not the tenant's: what is answered, and what the log says of them.
#include <memory>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/access/tenant_calls.h"
#include "server/calls/engine_calls.h"
#include "server/calls/engine_slot.h"
#include "server/json/json.h"
#include "tests/support/fake_engine.h"

namespace kvblend::server {
namespace {

using ::testing::HasSubstr;

class TenantNamesTest : public ::testing::Test {
 protected:
  TenantNamesTest() { slot_.Serve(&engine_); }

  absl::Status List(const std::string& name) {
    v1::ListChunksRequest request;
    request.set_namespace_(name);
    return tenant_->List(request).status();
  }
  absl::Status Prefetch(const std::string& readable) {
    v1::PrefetchChunksRequest request;
    request.add_read_namespaces("corpus");
    request.add_read_namespaces(readable);
    return tenant_->Prefetch(request).status();
  }

  EngineSlot slot_;
  EngineCalls calls_{&slot_, {.engine_options = {}, .max_message_bytes = 0}};
  testing::FakeEngine engine_;
  const std::shared_ptr<Calls> tenant_ = MakeTenantCalls(
      &calls_, {.name = "t", .chunk_namespace = "a", .read = {"corpus"}}, std::make_shared<Quota>(Tenant()));
};

TEST_F(TenantNamesTest, TheLogDoesNotHaveThem) {
  const absl::Status list = List("secret");
  EXPECT_EQ(list.code(), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(std::string(list.message()), "namespace is 'secret'; allowed: 'a', the one of the key, or none");
  EXPECT_EQ(LoggedMessage(list), "namespace is another; allowed: 'a', the one of the key, or none");
  const absl::Status prefetch = Prefetch("secret");
  EXPECT_EQ(prefetch.code(), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(std::string(prefetch.message()),
            "read_namespaces has 'secret'; allowed: those that the key may read (corpus)");
  EXPECT_EQ(LoggedMessage(prefetch),
            "read_namespaces has another; allowed: those that the key may read (corpus)");
}

TEST_F(TenantNamesTest, LongOnesAreCutAndLongerOnesAreNoNamespaces) {
  EXPECT_THAT(std::string(List(std::string(128, 'n')).message()),
              HasSubstr("is '" + std::string(80, 'n') + "'; allowed"));
  EXPECT_EQ(List(std::string(129, 'n')),
            absl::InvalidArgumentError("namespace has 129 bytes; allowed: at most 128"));
  EXPECT_EQ(Prefetch(std::string(8'000'000, 'n')),
            absl::InvalidArgumentError("read_namespaces[1] has 8000000 bytes; allowed: at most 128"));
}

}  // namespace
}  // namespace kvblend::server
