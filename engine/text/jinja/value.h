// Values of the template language, which are Python's: what a chat template computes with.
//
// Values are immutable and share what they hold, except namespaces, whose attributes may be set. Nothing
// refers to itself: a namespace takes no value that holds a namespace, so counting references frees
// everything.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/text/jinja/budget.h"

namespace kvblend::text::jinja {

class Value;
struct Statement;

using Items = std::vector<Value>;
using Pairs = std::vector<std::pair<std::string, Value>>;  // of a dict, in the order of insertion

struct ListData;
struct DictData;

/// What `{{ f }}` calls: a macro of the template, or a function of ours.
struct Function {
  std::string name;
  const Statement* macro = nullptr;  // of the template, which outlives the rendering; null: built in
};

/// Copies are cheap. Not for several threads at a time where a namespace is in it.
class Value {
 public:
  enum class Kind {
    kUndefined,
    kNone,
    kBool,
    kInteger,
    kFloat,
    kString,
    kList,
    kDict,
    kNamespace,
    kFunction
  };

  Value() : Value(Undefined("")) {}
  /// `name` is for messages.
  static Value Undefined(std::string name);
  static Value None();
  static Value Bool(bool value);
  static Value Integer(int64_t value);
  static Value Float(double value);
  static Value String(std::string value);
  static Value Of(Function function);
  /// kResourceExhausted: nested deeper than kMaxValueDepth. Keys come once each.
  static absl::StatusOr<Value> List(Items items);
  static absl::StatusOr<Value> Dict(Pairs pairs);
  static absl::StatusOr<Value> Namespace(Pairs pairs);

  Kind kind() const;
  bool is(Kind kind) const { return this->kind() == kind; }
  bool is_number() const { return is(Kind::kBool) || is(Kind::kInteger) || is(Kind::kFloat); }

  // REQUIRES: of that kind. `integer` also of a bool, `number` of every number, `pairs` also of a namespace.
  bool boolean() const { return std::get<bool>(data_); }
  int64_t integer() const;
  double number() const;
  const std::string& string() const;
  const Items& items() const;
  const Pairs& pairs() const;
  const Function& function() const;
  const std::string& undefined_name() const;

  /// An entry of a dict or namespace; null where there is none, or for other kinds.
  const Value* Find(std::string_view key) const;
  /// REQUIRES: a namespace. kResourceExhausted or kUnimplemented for what a namespace cannot hold.
  absl::Status SetAttribute(std::string_view name, Value value) const;

  bool Truth() const;
  /// "string", "list", ... for messages.
  std::string_view KindName() const;
  int depth() const;
  bool holds_namespace() const;

 private:
  struct UndefinedData {
    std::shared_ptr<const std::string> name;
  };
  struct NoneData {};
  struct NamespaceData {
    std::shared_ptr<DictData> dict;
  };
  using Data = std::variant<UndefinedData, NoneData, bool, int64_t, double,
                            std::shared_ptr<const std::string>, std::shared_ptr<const ListData>,
                            std::shared_ptr<const DictData>, NamespaceData, std::shared_ptr<const Function>>;
  explicit Value(Data data) : data_(std::move(data)) {}

  Data data_;
};

struct ListData {
  Items items;
  int depth = 1;
  bool holds_namespace = false;
};
struct DictData {
  Pairs pairs;
  int depth = 1;
  bool holds_namespace = false;
};

/// Before `key` is looked for in a dict or namespace; all else has no entries.
absl::Status CheckFind(const Value& value, std::string_view key, Budget* budget);
/// Before a copy is made of the keys of a dict or namespace, which are no values that others share.
absl::Status CheckKeys(const Pairs& pairs, Budget* budget);

/// As Python's ==; spends steps.
absl::StatusOr<bool> Equal(const Value& a, const Value& b, Budget* budget);
/// Below, equal or above zero. kInvalidArgument: values that have no order.
absl::StatusOr<int> Compare(const Value& a, const Value& b, Budget* budget);
/// As Python's str(); undefined gives nothing.
absl::StatusOr<std::string> ToText(const Value& value, Budget* budget);
/// As json.dumps(value, ensure_ascii=False, indent=indent, sort_keys=sort_keys). kInvalidArgument: what JSON
/// does not have.
absl::StatusOr<std::string> ToJson(const Value& value, std::optional<int> indent, bool sort_keys,
                                   Budget* budget);
/// As Python's repr() of a float.
std::string FloatText(double value);

}  // namespace kvblend::text::jinja
